"""Pictures, drawn on the server as SVG: what a browser gets is shapes and words, and no script is needed.

Colours come from classes in the style sheet, so that light, dark and print need no second drawing.
"""
