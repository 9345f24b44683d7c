"""The client agent: what runs at a site.

It dials out, keeps the site's policy, runs learners in worker processes, and writes down what leaves before it
leaves. `main` is the command line; `agent` is one node identity at work.
"""
