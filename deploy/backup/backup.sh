#!/usr/bin/env bash
# Back up the ledger: deploy/backup/backup.sh FILE
#
# While everything runs: the copy is that of one instant. PGSERVICEFILE names a file with the entry `hanse` for the
# tables' owner (the Secret `database-owner` holds one); needs pg_dump, not older than the server. Artifacts are copied
# by the store's own means (versions or a replica of the bucket), after the ledger: what the copy of the ledger names is
# then in the copy of the store.
set -euo pipefail
file=${1:?usage: backup.sh FILE}
umask 077
pg_dump --format=custom --no-owner --file="$file.part" "service=hanse"
# A file that cannot be read back is no backup.
pg_restore --list "$file.part" >/dev/null
mv "$file.part" "$file"
echo "$file: $(du --human-readable "$file" | cut -f1)"
