"""The operators' page: what pipelines do, drawn from sources, registries and Prefect's API. Stores nothing of its own.

``app`` puts it together. Needs the extra ``dashboard``; nothing else of the package imports it, but for the command.
"""
