#!/usr/bin/env bash
# Restore the ledger: deploy/backup/restore.sh FILE
#
# Into a database without tables, as deploy/postgres/roles.sql makes it, while no coordinator runs. All of it or nothing.
# PGSERVICEFILE as for backup.sh. Afterwards prove the ledger whole (hanse ledger verify --ledger …), then start the
# coordinators; agents come back by themselves.
set -euo pipefail
file=${1:?usage: restore.sh FILE}
tables=$(psql --no-psqlrc --tuples-only --no-align --dbname="service=hanse" \
  --command="SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
if [ "$tables" != 0 ]; then
  echo "restore.sh: the database holds $tables tables: a backup is restored into an empty one." >&2
  echo "Drop the database and run deploy/postgres/roles.sql first, once you are sure that you want that." >&2
  exit 1
fi
# The schema itself, its owner and its grants are there already, from roles.sql.
list=$(mktemp)
trap 'rm -f "$list"' EXIT
pg_restore --list "$file" | grep --invert-match --extended-regexp ' (SCHEMA|ACL|COMMENT) - (SCHEMA )?public ' >"$list"
pg_restore --exit-on-error --single-transaction --no-owner --use-list="$list" --dbname="service=hanse" "$file"
echo "$file is restored"
