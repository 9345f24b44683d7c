-- Roles and database of a federation's ledger. For psql, as a superuser (or a role that may create both), once; it may
-- run again, for instance to set new passwords:
--
--   HANSE_PASSWORDS=/run/secrets/hanse psql --no-psqlrc --file roles.sql postgres
--
-- HANSE_PASSWORDS names a folder with the files `owner`, `application` and `dashboard`, each a password and nothing
-- else. They never stand on a command line, and the server is told to log none of these statements.
--
--   hanse_owner      owns the tables; for migrations alone
--   hanse_app        the coordinator: reads and writes rows, but of the ledger's events it may only read and append
--   hanse_dashboard  the dashboard: reads, and writes its own two tables of log-ins

\set ON_ERROR_STOP on
\set owner `cat "$HANSE_PASSWORDS/owner"`
\set application `cat "$HANSE_PASSWORDS/application"`
\set dashboard `cat "$HANSE_PASSWORDS/dashboard"`
SET log_statement = 'none';
SET log_min_duration_statement = -1;
SET log_min_error_statement = 'panic';

SELECT format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT', name)
FROM unnest(ARRAY['hanse_owner', 'hanse_app', 'hanse_dashboard']) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE hanse_owner PASSWORD :'owner';
ALTER ROLE hanse_app PASSWORD :'application';
ALTER ROLE hanse_dashboard PASSWORD :'dashboard';

-- A server's administrator who is no superuser must be a member of the role that is to own the database.
SELECT format('GRANT hanse_owner TO %I', current_user)
WHERE NOT pg_has_role(current_user, 'hanse_owner', 'MEMBER') \gexec
SELECT 'CREATE DATABASE hanse OWNER hanse_owner ENCODING ''UTF8'' TEMPLATE template0'
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'hanse') \gexec
REVOKE ALL ON DATABASE hanse FROM PUBLIC;
GRANT CONNECT ON DATABASE hanse TO hanse_app, hanse_dashboard;

\connect hanse
SET log_statement = 'none';
REVOKE ALL ON SCHEMA public FROM PUBLIC;
ALTER SCHEMA public OWNER TO hanse_owner;
GRANT USAGE ON SCHEMA public TO hanse_app, hanse_dashboard;
