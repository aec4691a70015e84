"""Any fsspec filesystem that has no storage of its own here, such as archives, references, caches, FTP and SFTP.

``opening`` imports ``storage``, and ``links`` finds the filesystems that one is made of. Begin with ``storage.py``.
"""
