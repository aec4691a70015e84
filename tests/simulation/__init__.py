"""The whole of clients, network and servers in one process, on virtual time, from one seed: the same seed is the same run.

Begin with ``world.py``; ``histories.py`` makes and checks one run, ``campaign.py`` many.
"""
