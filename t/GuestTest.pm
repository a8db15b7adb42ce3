
=pod

=head1 NAME

GuestTest - the same scripts on a bare server and on a server with redlock_pg

=head1 SYNOPSIS

  use GuestTest;

  my $bare  = guest_cluster('bare', '');
  my $ours  = guest_cluster('ours', 'redlock_pg', nodes => \@nodes);
  my $there = run_all($bare, 'session');

  compare($ours, 'session', $there, with_log => 1);
  is_quiet($ours);

The scripts have nothing to do with locks, and fail in many ways.  The output of psql and
the log are compared word by word: without a lock, and with a lock at session, transaction
or call scope.  take() and take_in_call() acquire the lock where its scope can begin; on a
cluster without redlock_pg they do nothing.

=cut

package GuestTest;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

our @EXPORT = qw(@guest_scopes guest_cluster run_all compare is_quiet);

our @guest_scopes = ('none', 'session', 'transaction', 'call');

# no autovacuum, unless a test is about autovacuum: new statistics change plans
my $common_conf = <<'CONF';
autovacuum = off
max_prepared_transactions = 5
dynamic_shared_memory_type = mmap
log_line_prefix = '%m [%p] %q%a: '
log_statement = none
log_min_messages = notice
log_error_verbosity = verbose
max_worker_processes = 16
CONF

# One statement each, on the objects of setup_sql().
my %statements = (
	'foreign key, insert'           => 'INSERT INTO child VALUES (1)',
	'foreign key, delete'           => 'DELETE FROM parent WHERE id = 5',
	'foreign key, update'           => 'UPDATE parent SET id = id + 100',
	'foreign key, truncate'         => 'TRUNCATE parent',
	'after row trigger raises'      => 'INSERT INTO noisy VALUES (1), (-1)',
	'after row trigger tells'       => 'INSERT INTO noisy VALUES (1), (2)',
	'after statement trigger'       => 'UPDATE noisy SET id = -id',
	'before trigger raises'         => 'INSERT INTO before_noisy VALUES (-1)',
	'instead of trigger raises'     => 'INSERT INTO noisy_view VALUES (-1)',
	'check constraint'              => 'INSERT INTO checked VALUES (-1)',
	'unique constraint'             => 'INSERT INTO parent VALUES (5)',
	'no error at all'               => 'INSERT INTO parent VALUES (6) ON CONFLICT DO NOTHING',
	'executor'                      => 'SELECT 1 / (3 - i) FROM generate_series(1, 5) i',
	'planner'                       => 'SELECT 1 / 0',
	'parser'                        => 'SELECT no_such_column FROM parent',
	'data-modifying WITH'           => 'WITH w AS (INSERT INTO child VALUES (1) RETURNING id) SELECT * FROM w',
	'explain analyze, error'        => 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off, BUFFERS off) INSERT INTO child VALUES (1)',
	'explain analyze, trigger'      => 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off, BUFFERS off) INSERT INTO noisy VALUES (7)',
	'explain analyze, executor'     => 'EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off, BUFFERS off) SELECT 1 / (3 - i) FROM generate_series(1, 5) i',
	'create table as'               => 'CREATE TABLE made AS SELECT 1 / (3 - i) AS n FROM generate_series(1, 5) i',
	'materialized view'             => 'REFRESH MATERIALIZED VIEW materialized',
	'index on an expression'        => 'CREATE INDEX ON parent ((1 / (id - 5)))',
	'constraint that is not met'    => 'ALTER TABLE parent ADD CHECK (id <> 5)',
	'table that is rewritten'       => 'ALTER TABLE parent ALTER id TYPE bigint USING 1 / (id - 5)',
	'event trigger, create'         => 'CREATE TABLE forbidden ()',
	'event trigger, drop'           => 'DROP TABLE undroppable',
	'nested blocks, caught'         => 'SELECT nested(3, false)',
	'nested blocks, not caught'     => 'SELECT nested(3, true)',
	'function in a function'        => 'SELECT outer_function(-1)',
	'DO'                            => q{DO $do$ BEGIN INSERT INTO child VALUES (1); END $do$},
	'DO, caught'                    => q{DO $do$ BEGIN INSERT INTO child VALUES (1); EXCEPTION WHEN foreign_key_violation THEN RAISE NOTICE '%', SQLERRM; END $do$},
	'CALL'                          => 'CALL insert_child(1)',
	'prepared statement'            => 'EXECUTE prepared(1)',
	'COPY, bad line'                => q{COPY noisy FROM :'bad'},
	'COPY, trigger'                 => q{COPY noisy FROM :'negative'},
	'COPY, constraint at its end'   => q{COPY child FROM :'negative'},
	'COPY, deferred constraint'     => q{COPY deferred FROM :'negative'},
	'COPY, check constraint'        => q{COPY checked FROM :'negative'},
	'COPY TO'                       => q{COPY (SELECT 1 / (3 - i) FROM generate_series(1, 5) i) TO STDOUT},
	'deferred constraint'           => 'INSERT INTO deferred VALUES (1)',
	'deferred trigger'              => 'INSERT INTO deferred_noisy VALUES (-1), (1)',
	'parallel workers, error'       => 'SELECT sum(1 / (id - 4000)) FROM big',
	'parallel workers'              => 'SELECT sum(id) FROM big',
);

# Scripts of several statements.
my %scripts = (
	'deferred constraint at COMMIT' => <<'SQL',
BEGIN;
SELECT take();
INSERT INTO deferred VALUES (1);
SELECT count(*) FROM deferred;
COMMIT;
SQL
	'deferred trigger at COMMIT' => <<'SQL',
BEGIN;
SELECT take();
INSERT INTO deferred_noisy VALUES (1), (-1);
COMMIT;
BEGIN;
SELECT take();
INSERT INTO deferred_noisy VALUES (1);
COMMIT;
SQL
	'SET CONSTRAINTS' => <<'SQL',
BEGIN;
SELECT take();
INSERT INTO deferred VALUES (1);
SAVEPOINT s;
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK TO s;
SELECT holds();
DELETE FROM deferred;
SET CONSTRAINTS ALL IMMEDIATE;
COMMIT;
SQL
	'cursor' => <<'SQL',
BEGIN;
SELECT take();
DECLARE c CURSOR FOR SELECT 1 / (3 - i) FROM generate_series(1, 5) i;
FETCH 2 FROM c;
SAVEPOINT s;
FETCH 2 FROM c;
ROLLBACK TO s;
SELECT holds();
FETCH 1 FROM c;
ROLLBACK TO s;
CLOSE c;
DECLARE c CURSOR FOR SELECT noisy_function(i) FROM generate_series(1, 5) i;
FETCH 2 FROM c;
CLOSE c;
DECLARE d CURSOR FOR SELECT noisy_function(i) FROM generate_series(1, 5) i;
FETCH 2 FROM d;
COMMIT;
BEGIN;
DECLARE d CURSOR FOR SELECT 1 / (3 - i) FROM generate_series(1, 5) i;
SELECT take();
FETCH ALL FROM d;
ROLLBACK;
SQL
	'cursor WITH HOLD' => <<'SQL',
BEGIN;
SELECT take();
DECLARE c CURSOR WITH HOLD FOR SELECT 1 / (3 - i) FROM generate_series(1, 5) i;
FETCH 2 FROM c;
COMMIT;
FETCH 1 FROM c;
BEGIN;
SELECT take();
DECLARE c CURSOR WITH HOLD FOR SELECT noisy_function(i) FROM generate_series(1, 3) i;
FETCH 1 FROM c;
COMMIT;
FETCH ALL FROM c;
CLOSE c;
SQL
	'cursor of parallel workers' => <<'SQL',
BEGIN;
SELECT take();
DECLARE c CURSOR WITH HOLD FOR SELECT count(*) FROM big;
COMMIT;
FETCH c;
CLOSE ALL;
SQL
	'procedure after its COMMIT' => <<'SQL',
CALL commits_and_fails('INSERT INTO child VALUES (1)');
CALL commits_and_fails('SELECT 1 / 0');
CALL commits_and_fails('INSERT INTO deferred VALUES (1)');
CALL commits_and_fails('COMMIT');
SELECT id FROM kept ORDER BY id;
DELETE FROM kept;
SQL
	'procedure that commits in a loop' => <<'SQL',
CALL commits_in_loop(3);
CALL commits_in_loop(7);
SELECT id FROM kept ORDER BY id;
DELETE FROM kept;
SQL
	'DO that commits' => <<'SQL',
DO $$
BEGIN
	PERFORM take_in_call();
	INSERT INTO deferred VALUES (1);
	COMMIT;
END $$;
DO $$
BEGIN
	PERFORM take_in_call();
	INSERT INTO kept VALUES (1);
	COMMIT;
	BEGIN
		INSERT INTO child VALUES (1);
	EXCEPTION WHEN foreign_key_violation THEN
		RAISE NOTICE 'caught: %', SQLERRM;
	END;
	ROLLBACK;
	INSERT INTO child VALUES (1);
END $$;
DELETE FROM kept;
SQL
	'prepared statements' => <<'SQL',
BEGIN;
SELECT take();
SAVEPOINT s;
EXECUTE prepared(1);
ROLLBACK TO s;
EXECUTE prepared_series(3);
ROLLBACK TO s;
EXECUTE prepared_series(9);
COMMIT;
SQL
	'two-phase' => <<'SQL',
SELECT take();
BEGIN;
INSERT INTO noisy VALUES (1);
PREPARE TRANSACTION 'guest';
COMMIT PREPARED 'guest';
BEGIN;
INSERT INTO deferred VALUES (1);
PREPARE TRANSACTION 'guest';
COMMIT PREPARED 'guest';
BEGIN;
INSERT INTO deferred_noisy VALUES (1);
PREPARE TRANSACTION 'guest';
ROLLBACK PREPARED 'guest';
SQL
	'COPY by the client' => <<'SQL',
BEGIN;
SELECT take();
SAVEPOINT s;
COPY noisy FROM STDIN;
1
x
\.
ROLLBACK TO s;
COPY noisy FROM STDIN;
1
-1
\.
ROLLBACK TO s;
COPY child FROM STDIN;
1
\.
ROLLBACK TO s;
SELECT holds();
COPY noisy FROM STDIN;
3
\.
COPY noisy TO STDOUT;
ROLLBACK;
SQL
	'several statements in one message' => <<'SQL',
SELECT take()\; INSERT INTO noisy VALUES (1)\; INSERT INTO child VALUES (1)\; SELECT 1;
BEGIN\; SELECT take()\; INSERT INTO deferred VALUES (1)\; COMMIT;
SQL
	'savepoints' => <<'SQL',
BEGIN;
SAVEPOINT a;
SELECT take();
SAVEPOINT b;
INSERT INTO child VALUES (1);
ROLLBACK TO b;
SELECT holds();
INSERT INTO deferred_noisy VALUES (-1);
RELEASE a;
COMMIT;
SQL
	'serializable' => <<'SQL',
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO child VALUES (1);
COMMIT;
SQL
	'EXPLAIN ANALYZE of workers' => <<'SQL',
BEGIN;
SELECT take();
EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off, BUFFERS off) SELECT sum(id) FROM big;
ROLLBACK;
SQL
	'notify' => <<'SQL',
LISTEN guest;
BEGIN;
SELECT take();
NOTIFY guest;
INSERT INTO deferred VALUES (1);
COMMIT;
UNLISTEN guest;
SQL
	'statement timeout' => <<'SQL',
SET statement_timeout = '300ms';
SELECT pg_sleep(60);
RESET statement_timeout;
BEGIN;
SELECT take();
SET LOCAL statement_timeout = '300ms';
SELECT pg_sleep(60);
COMMIT;
SQL
);

# The objects of every cluster.
sub setup_sql
{
	return <<'SQL';
CREATE TABLE parent (id int PRIMARY KEY);
INSERT INTO parent VALUES (5);
CREATE TABLE child (id int REFERENCES parent);
INSERT INTO child VALUES (5);
CREATE TABLE deferred (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE checked (id int CHECK (id > 0));
CREATE TABLE kept (id int);
CREATE TABLE noisy (id int);
CREATE TABLE before_noisy (id int);
CREATE TABLE deferred_noisy (id int);
CREATE VIEW noisy_view AS SELECT * FROM noisy;

CREATE FUNCTION noisy_function(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE 'a function: %', n;
	IF n < 0 THEN
		RAISE EXCEPTION 'negative: %', n;
	END IF;
	RETURN n;
END $$;
CREATE FUNCTION noisy_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE '% %', TG_WHEN, TG_LEVEL;
	IF TG_LEVEL = 'ROW' THEN
		PERFORM public.noisy_function(NEW.id);
		RETURN NEW;
	END IF;
	IF EXISTS (SELECT FROM public.noisy WHERE id < 0) THEN
		RAISE EXCEPTION 'negative in the table';
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER after_row AFTER INSERT OR UPDATE ON noisy
	FOR EACH ROW WHEN (NEW.id < 3) EXECUTE FUNCTION noisy_trigger();
CREATE TRIGGER after_statement AFTER INSERT OR UPDATE ON noisy
	FOR EACH STATEMENT EXECUTE FUNCTION noisy_trigger();
CREATE TRIGGER before_row BEFORE INSERT ON before_noisy
	FOR EACH ROW EXECUTE FUNCTION noisy_trigger();
CREATE TRIGGER instead_of INSTEAD OF INSERT ON noisy_view
	FOR EACH ROW EXECUTE FUNCTION noisy_trigger();
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON deferred_noisy
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION noisy_trigger();

CREATE MATERIALIZED VIEW materialized AS SELECT 1 / (id - 6) FROM parent WITH NO DATA;
INSERT INTO parent VALUES (6);
CREATE TABLE undroppable ();

CREATE FUNCTION outer_function(n int) RETURNS int LANGUAGE sql VOLATILE AS $$
	INSERT INTO noisy VALUES (n);
	SELECT noisy_function(n)
$$;
CREATE FUNCTION nested(depth int, out_of_it boolean) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		IF depth > 0 THEN
			PERFORM nested(depth - 1, out_of_it);
		END IF;
		INSERT INTO child VALUES (depth);
	EXCEPTION WHEN others THEN
		RAISE NOTICE 'caught at %: %', depth, SQLERRM;
		IF out_of_it AND depth > 0 THEN
			RAISE;
		END IF;
	END;
	INSERT INTO parent VALUES (1000 + depth);
	DELETE FROM parent WHERE id >= 1000;
	RETURN depth;
END $$;
CREATE PROCEDURE insert_child(n int) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM take_in_call();
	INSERT INTO child VALUES (n);
END $$;
CREATE PROCEDURE commits_and_fails(command text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM take_in_call();
	INSERT INTO kept VALUES (1);
	COMMIT;
	INSERT INTO kept VALUES (2);
	EXECUTE command;
	COMMIT;
	INSERT INTO kept VALUES (3);
END $$;
CREATE PROCEDURE commits_in_loop(n int) LANGUAGE plpgsql AS $$
DECLARE
	i int;
BEGIN
	PERFORM take_in_call();
	FOR i IN SELECT 10 / (n - s) FROM generate_series(1, 5) s LOOP
		INSERT INTO kept VALUES (i);
		COMMIT;
	END LOOP;
END $$;
CREATE PROCEDURE run(command text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM take_in_call();
	EXECUTE command;
END $$;
CREATE PROCEDURE run_caught(command text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM take_in_call();
	BEGIN
		EXECUTE command;
	EXCEPTION WHEN others THEN
		RAISE NOTICE 'caught: %', SQLERRM;
	END;
	EXECUTE command;
END $$;

CREATE TABLE big WITH (parallel_workers = 2) AS SELECT i AS id FROM generate_series(1, 5000) i;
ANALYZE big;

CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_EVENT = 'ddl_command_end'
		AND EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%forbidden%')
	   OR TG_EVENT = 'sql_drop'
		AND EXISTS (SELECT FROM pg_event_trigger_dropped_objects() WHERE object_identity LIKE '%undroppable') THEN
		RAISE EXCEPTION 'refused by an event trigger: %', TG_TAG;
	END IF;
END $$;
CREATE EVENT TRIGGER refuse_create ON ddl_command_end EXECUTE FUNCTION refuse();
CREATE EVENT TRIGGER refuse_drop ON sql_drop EXECUTE FUNCTION refuse();

-- without redlock_pg; replaced where it is
CREATE FUNCTION take() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN true;
END $$;
CREATE FUNCTION take_in_call() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN true;
END $$;
CREATE FUNCTION holds() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN true;
END $$;
CREATE FUNCTION holds_between() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN true;
END $$;
SQL
}

# guest.scope is the scope of the lock.  holds(): a transaction that called take() still has the
# lock.  holds_between(): outside of a transaction, only a lock at session scope is held.
sub setup_locks_sql
{
	return <<'SQL';
CREATE EXTENSION redlock_pg;
CREATE FUNCTION take_one(scopes text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('guest.scope') = ANY (scopes) THEN
		PERFORM redlock_acquire('guest ' || pg_backend_pid(),
			scope => current_setting('guest.scope')::redlock_scope);
	END IF;
	RETURN true;
END $$;
CREATE OR REPLACE FUNCTION take() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN take_one('{transaction,session}');
END $$;
CREATE OR REPLACE FUNCTION take_in_call() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN take_one('{transaction,session,call}');
END $$;
CREATE OR REPLACE FUNCTION holds() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN redlock_token('guest ' || pg_backend_pid()) IS NOT NULL
		OR current_setting('guest.scope') IN ('none', 'call');
END $$;
CREATE OR REPLACE FUNCTION holds_between() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN (redlock_token('guest ' || pg_backend_pid()) IS NOT NULL)
		= (current_setting('guest.scope') = 'session');
END $$;
SQL
}

=pod

=head1 FUNCTIONS

=over

=item guest_cluster(name, libraries, options)

Creates and starts a cluster that preloads the libraries and has the objects of the scripts.
Options: B<nodes>, for redlock_pg; B<conf>, text.

=cut

sub guest_cluster
{
	my ($name, $libraries, %options) = @_;
	my $host = PostgreSQL::Test::Cluster->new($name);
	my $ours = $libraries =~ /redlock_pg/;

	$host->init(allows_streaming => 'logical');
	$host->append_conf('postgresql.conf',
		$common_conf . ($options{conf} // '') . "shared_preload_libraries = '$libraries'\n");
	$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls(@{ $options{nodes} }) . "'\n") if $ours;
	$host->append_conf('postgresql.conf', "cron.database_name = 'postgres'\n") if $libraries =~ /pg_cron/;
	$host->start;
	$host->safe_psql('postgres', setup_sql());
	$host->safe_psql('postgres', setup_locks_sql()) if $ours;
	wait_nodes_ready($host, scalar @{ $options{nodes} }) if $ours;
	return $host;
}

# The pieces that a session runs, by name.
my (@pieces, %pieces);

sub piece
{
	my ($name, $sql) = @_;

	push @pieces, $name;
	$pieces{$name} = $sql;
}

foreach my $name (sort keys %statements)
{
	my $statement = $statements{$name};
	# psql replaces no variable within quotes
	my $quoted = $statement =~ /:'/
	  ? "format(\$run\$" . ($statement =~ s/:'\w+'/%L/r) . "\$run\$, " . ($statement =~ /(:'\w+')/)[0] . ')'
	  : "\$run\$$statement\$run\$";

	piece("$name", "$statement;\n");
	piece("$name, in a transaction", "BEGIN;\nSELECT take();\n$statement;\nSELECT holds();\nCOMMIT;\n");
	piece("$name, after a savepoint",
		"BEGIN;\nSELECT take();\nSAVEPOINT s;\n$statement;\nROLLBACK TO s;\nSELECT holds();\nCOMMIT;\n");
	next if $statement =~ /STDOUT/;
	piece("$name, in a procedure", "CALL run($quoted);\n");
	piece("$name, caught in a procedure", "CALL run_caught($quoted);\n");
}
piece($_, $scripts{$_}) foreach sort keys %scripts;

my %files = (bad => "1\n2\nx\n", negative => "1\n-1\n");
my $dir;

# Writes the files, once.
sub write_files
{
	return if defined $dir;
	$dir = PostgreSQL::Test::Utils::tempdir();
	append_to_file("$dir/$_", $files{$_}) foreach keys %files;
	append_to_file("$dir/script.sql", join "\n",
		'PREPARE prepared(int) AS INSERT INTO child VALUES ($1);',
		'PREPARE prepared_series(int) AS SELECT 1 / ($1 - i) FROM generate_series(1, 5) i;',
		'SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;',
		'SET parallel_leader_participation = off; SET max_parallel_maintenance_workers = 0;',
		'SELECT take();',
		map("\\echo '==== $_'\n$pieces{$_}\nSELECT holds_between();", @pieces),
		"\\echo '==== end'", '');
	return;
}

=pod

=item run_all(cluster, scope)

Runs all pieces in one session.  Returns an array reference of psql's output, a hash by the
pieces' names, and of the lines in the log.

=cut

sub run_all
{
	my ($host, $scope) = @_;
	my $log_size = -s $host->logfile;
	my $out = '';
	my %printed;

	write_files();
	local $ENV{PGAPPNAME} = 'guest';
	local $ENV{PGOPTIONS} = "-c guest.scope=$scope -c client_min_messages=notice";
	eval {
		IPC::Run::run(
			[
				$host->installed_command('psql'), '-X', '-a', '-q',
				'-v', 'VERBOSITY=verbose', '-v', 'SHOW_CONTEXT=always',
				map({ ('-v', "$_=$dir/$_") } keys %files),
				'-d', $host->connstr('postgres'), '-f', "$dir/script.sql"
			],
			'<', \undef, '>&', \$out,
			IPC::Run::timeout(3 * $PostgreSQL::Test::Utils::timeout_default));
	};
	$out =~ s/^psql:\S+?:\d+: //mg;
	$out =~ s/process with PID \d+/process/g;
	%printed = map { /^(.*?)\n(.*)/s } split /^==== /m, $out;

	my $log = slurp_file($host->logfile, $log_size);
	my $lines = join '', $log =~ /^\S+ \S+ \S+ \[\d+\] guest: (.*\n(?:\t.*\n)*)/mg;
	$lines =~ s/duration: .*\n(?:\t.*\n)*//g;    # auto_explain's
	$lines =~ s/process with PID \d+/process/g;
	return [ \%printed, $lines ];
}

=pod

=item is_quiet(cluster)

Checks that the log has no crash, no leak, and no warning or error of redlock_pg.

=cut

sub is_quiet
{
	my ($host) = @_;
	my $log = slurp_file($host->logfile);
	my @bad = grep { /terminated by signal|PANIC|TRAP|not closed|leak|don't own a lock|(WARNING|ERROR|FATAL).*redlock/ }
	  split /\n/, $log;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join("\n", @bad), '', $host->name . ': nothing of ours, nor of damage, in the log');
}

=pod

=item compare(cluster, scope, bare, options)

Runs all pieces, and compares their output with the result of B<run_all> on the bare server;
with the option B<with_log>, the log too.

=back

=cut

sub compare
{
	my ($host, $scope, $bare, %options) = @_;
	my ($printed, $log) = @{ run_all($host, $scope) };
	my @different = grep { ($printed->{$_} // '') ne ($bare->[0]{$_} // '') } @pieces;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(exists $printed->{end}, $host->name . ", scope $scope: the session gets to the end");
	is(scalar @different, 0,
		$host->name . ", scope $scope: all " . @pieces . ' pieces print what they do in a bare server');
	is($printed->{$_}, $bare->[0]{$_}, $_) foreach splice @different, 0, 3;
	if ($options{with_log})
	{
		my @ours  = split /\n/, $log;
		my @bares = split /\n/, $bare->[1];
		my ($first) = grep { ($ours[$_] // '') ne ($bares[$_] // '') } 0 .. $#bares;

		is(scalar @ours, scalar @bares, $host->name . ", scope $scope: as many lines in the log")
		  or $first //= $#bares;
		ok(!defined $first, $host->name . ", scope $scope: and the same")
		  or diag("line $first: " . join "\n", map { $_ // '' } @ours[ $first - 3 .. $first + 3 ],
			'bare:', @bares[ $first - 3 .. $first + 3 ]);
	}
}

1;
