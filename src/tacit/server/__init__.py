"""The server: people send text, somebody chooses the protection, the server trains.

settings     where things lie and how much of them is accepted
storage      the tables, and the two kinds of transaction; `migrations` brings a database up to date
identity     accounts, roles, tokens, passwords
auditlog     who did what
records      text: appended in groups, never lost or doubled, deleted for good
datasets     what records belong to, whom they are about, the lists of entities to protect
budget       what all runs on a dataset may spend together, and the one place where it is reserved
requests     what a caller asks for, as the settings of a run; nothing in it names a file
plans        the dry run
jobs         a queue, and a child process for each run, detection, attack
models       what came out: predictions, downloads, certificates
services     all of these together; knows nothing of HTTP
api          the same over HTTP
client       the other side
"""
