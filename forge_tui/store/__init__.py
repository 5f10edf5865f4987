"""The store: one session is one folder on a local disk; one library of the user lies beside the sessions.

Promises:
- Facts are insert-only rows. A fact is committed before it is announced: a future resolves and a listener is
  called only after COMMIT. The database itself refuses UPDATE and DELETE on fact tables.
- All facts share one sequence, so "what happened after what" is known across tables, for replay and for viewers.
- One writer thread in the owning process; everybody else reads. A reader never blocks the writer.
- What lists show (`node`) is derived from facts, kept beside them in the same transaction, and can be rebuilt.
- Blobs are content-addressed files, written under a temporary name and renamed before anything refers to them.
- Log lines are not facts: they are batched and may be dropped (counted) while the disk is full.
- Folders 0700, files 0600. Network file systems, where WAL fails, are detected, and a local folder is named instead.

May import: records. Reading needs the standard library only; sqlite_utils is imported when a database is made or
migrated, so that a screen can open a session without it.
"""
