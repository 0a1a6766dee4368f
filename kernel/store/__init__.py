"""All facts and all SQL. Functions take the transaction first, and never commit.

Receives rules' values and hands on rows. One module owns each table's statements; the same
code runs on SQLite, MariaDB and MySQL through `dialect`.
"""
