"""The verbs for the daily work on a cluster: ``topics``, ``consume``, ``groups`` and ``acls``.

They are shells over ``dualwrite.admin``, need no database, and work with the base installation.
"""
