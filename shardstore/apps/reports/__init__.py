"""What a store is and how it is: the facts, the advice that follows, and the page that shows them.

``shardstore report``, the server and notebooks show it. Begin with ``facts.py``; ``page.py`` is the only module that imports jinja2.
"""
