-- What the programs may do with the ledger's tables: run as their owner after each migration (`grant.py` does), since a
-- migration may bring new tables. It may run at any time.

-- The coordinator: rows of every table, tables of no kind.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO hanse_app;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO hanse_app;
-- Events are read and appended, nothing else: neither changed, nor deleted, nor emptied.
REVOKE ALL ON event FROM hanse_app;
GRANT SELECT, INSERT ON event TO hanse_app;
-- At which revision the tables are, is for migrations to say.
REVOKE ALL ON alembic_version FROM hanse_app;
GRANT SELECT ON alembic_version TO hanse_app;

-- The dashboard: reads, and keeps log-ins.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO hanse_dashboard;
GRANT INSERT, UPDATE, DELETE ON login_session, login_attempt TO hanse_dashboard;
GRANT USAGE ON SEQUENCE login_attempt_id_seq TO hanse_dashboard;
