"""What the bytes of a checkpoint say. Each module takes a :class:`~ckptcore.formats.reader.Reader`, never a path."""
