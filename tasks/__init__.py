"""The steps of the lifecycle as Prefect tasks, one a file: detect, verify, plan, merge, validate, publish.

Each is a call of ``ckptcore``, a log line and an artifact; none decides anything about checkpoints. What goes in and
comes out is small: versions, digests, reports, names. ``flows`` chains them, and so can a flow of your own::

    from tasks.detect import detect
    from tasks.verify import verify

All of them are safe to run again: a step that was done is found done on the disk, and nothing is remembered elsewhere.
"""
