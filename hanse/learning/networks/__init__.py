"""Networks in plain torch, and what a learner needs to know of them: `roles`, `image_models`, `small_cnn`, `resnet`.

Importing this package, or `image_models`, loads no torch; building a network does.
"""
