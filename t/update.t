# ALTER EXTENSION redlock_pg UPDATE, from each earlier release.
#
# Protects from: an update leaving another definition, comment or privilege than a new installation;
# an update losing fences, held locks, views of users, or changed privileges; SQL objects of an
# earlier release failing with this library before the update; roles that cannot be dropped after an
# update; default privileges that let a role write the tables of the extension, or that return a
# right taken from the role; an update succeeding with an older library, which lacks the new
# functions; a C function changing its arguments or result under its old name; objects of a role
# with CREATE on the extension's schema running with the rights of a superuser, in a script, a view
# or a function of the extension.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('host', nodes => \@nodes, conf => "redlock.ttl = '60s'");

my $now = $host->safe_psql('postgres',
	"SELECT default_version FROM pg_available_extensions WHERE name = 'redlock_pg'");
my @earlier = split /\n/, $host->safe_psql('postgres',
	"SELECT version FROM pg_available_extension_versions WHERE name = 'redlock_pg' AND version <> '$now' ORDER BY 1");

# All facts about the extension's objects, one a line, without OIDs.
my $inventory = <<'SQL';
WITH members AS (
    SELECT d.classid, d.objid
      FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
       AND e.extname = 'redlock_pg'
), relations AS (
    SELECT c.* FROM members m JOIN pg_class c ON c.oid = m.objid
     WHERE m.classid = 'pg_class'::regclass
), parts AS (
    SELECT classid, objid FROM members
     UNION SELECT 'pg_class'::regclass, i.indexrelid
      FROM relations r JOIN pg_index i ON i.indrelid = r.oid
     UNION SELECT 'pg_constraint'::regclass, c.oid
      FROM relations r JOIN pg_constraint c ON c.conrelid = r.oid
     UNION SELECT 'pg_trigger'::regclass, t.oid
      FROM relations r JOIN pg_trigger t ON t.tgrelid = r.oid
     UNION SELECT 'pg_rewrite'::regclass, w.oid
      FROM relations r JOIN pg_rewrite w ON w.ev_class = r.oid
     UNION SELECT 'pg_policy'::regclass, p.oid
      FROM relations r JOIN pg_policy p ON p.polrelid = r.oid
     UNION SELECT 'pg_attrdef'::regclass, a.oid
      FROM relations r JOIN pg_attrdef a ON a.adrelid = r.oid
)
SELECT regexp_replace(fact, '\s+', ' ', 'g') FROM (
    SELECT concat_ws(' ', 'member', pg_describe_object(classid, objid, 0)) FROM members
    UNION ALL
    SELECT concat_ws(' ', 'part', pg_describe_object(classid, objid, 0)) FROM parts
    UNION ALL
    SELECT concat_ws(' ', 'depends', pg_describe_object(d.classid, d.objid, d.objsubid), d.deptype,
           pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid))
      FROM parts p JOIN pg_depend d USING (classid, objid)
    UNION ALL
    SELECT concat_ws(' ', 'extension', extversion, extrelocatable, extnamespace::regnamespace, extowner::regrole,
           extconfig::regclass[], extcondition)
      FROM pg_extension WHERE extname = 'redlock_pg'
    UNION ALL
    SELECT concat_ws(' ', 'function', p.oid::regprocedure, p.proowner::regrole, 'acl', p.proacl, 'type', p.prokind,
           p.prosrc, p.probin, pg_get_functiondef(p.oid))
      FROM members m JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass
    UNION ALL
    SELECT concat_ws(' ', 'type', format_type(t.oid, NULL), t.typowner::regrole, 'acl', t.typacl, t.typtype, t.typcategory,
           ARRAY(SELECT concat_ws(' ', enumlabel) FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder))
      FROM members m JOIN pg_type t ON t.oid = m.objid AND m.classid = 'pg_type'::regclass
    UNION ALL
    SELECT concat_ws(' ', 'relation', c.oid::regclass, c.relowner::regrole, 'acl', c.relacl, 'kind', c.relkind,
           c.relpersistence, c.relreplident, c.relrowsecurity, c.relforcerowsecurity, c.relispartition,
           'am', c.relam, 'space', c.reltablespace, 'options', c.reloptions, 'toast', c.reltoastrelid <> 0,
           CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END)
      FROM parts p JOIN pg_class c ON c.oid = p.objid AND p.classid = 'pg_class'::regclass
    UNION ALL
    SELECT concat_ws(' ', 'column', a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
           a.attcollation::regcollation, 'not null', a.attnotnull, 'acl', a.attacl,
           -- but for the version that minor releases of 2026 number columns with
           'options', ARRAY(SELECT o FROM unnest(a.attoptions) o WHERE o !~ '^pg_attver='), a.attstorage,
           a.attcompression, a.attidentity, a.attgenerated, a.attstattarget, pg_get_expr(d.adbin, d.adrelid))
      FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT concat_ws(' ', 'index', pg_get_indexdef(i.indexrelid), i.indisclustered, i.indisreplident, i.indisvalid)
      FROM relations r JOIN pg_index i ON i.indrelid = r.oid
    UNION ALL
    SELECT concat_ws(' ', 'constraint', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid), c.convalidated)
      FROM relations r JOIN pg_constraint c ON c.conrelid = r.oid
    UNION ALL
    SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(t.oid), 'fires', t.tgenabled)
      FROM relations r JOIN pg_trigger t ON t.tgrelid = r.oid
    UNION ALL
    SELECT concat_ws(' ', 'rule', pg_get_ruledef(w.oid), 'fires', w.ev_enabled)
      FROM relations r JOIN pg_rewrite w ON w.ev_class = r.oid
    UNION ALL
    SELECT concat_ws(' ', 'comment', pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description)
      FROM parts p JOIN pg_description d ON d.classoid = p.classid AND d.objoid = p.objid
    UNION ALL
    SELECT concat_ws(' ', 'comment', e.extname, obj_description(e.oid, 'pg_extension'))
      FROM pg_extension e WHERE e.extname = 'redlock_pg'
    UNION ALL
    SELECT concat_ws(' ', 'initial privileges', pg_describe_object(i.classoid, i.objoid, i.objsubid), i.privtype, i.initprivs)
      FROM parts p JOIN pg_init_privs i ON i.classoid = p.classid AND i.objoid = p.objid
) facts (fact)
 ORDER BY fact COLLATE "C"
SQL

# The lines in only one of two texts.
sub differences
{
	my ($updated, $fresh) = @_;
	my %updated = map { $_ => 1 } split /\n/, $updated;
	my %fresh   = map { $_ => 1 } split /\n/, $fresh;

	return join "\n",
	  (map { "updated: $_" } grep { !$fresh{$_} } sort keys %updated),
	  (map { "fresh: $_" } grep { !$updated{$_} } sort keys %fresh);
}

# Arguments and results of the SQL functions, by the names of the C functions.
my $interfaces = <<'SQL';
SELECT p.prosrc, regexp_replace(pg_get_function_arguments(p.oid), ' DEFAULT [^,]*', '', 'g'), pg_get_function_result(p.oid)
  FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid JOIN pg_proc p ON p.oid = d.objid
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
   AND d.classid = 'pg_proc'::regclass AND e.extname = 'redlock_pg' AND p.probin IS NOT NULL
SQL

sub interfaces
{
	my ($db) = @_;
	return map { /^(\w+)\|(.*)$/ ? ($1, $2) : die $_ } split /\n/, $host->safe_psql($db, $interfaces);
}

# Calls each function and view.  A function without a call fails the test.
sub calls_work
{
	my ($db, $what) = @_;
	my $s = session($host, dbname => $db);
	my %works = (
		redlock_acquire      => [ "SELECT redlock_acquire('n', '1 s', '30 s', 'session', '1 ms', '1 min') > 0", 't' ],
		redlock_try          => [ "SELECT redlock_try('n', '30 s', 'session', '1 ms', '1 min')", 't' ],
		redlock_acquire_all  => [ "SELECT redlock_acquire_all('{n}', scope => 'session') = ARRAY[redlock_token('n')], redlock_release('n')", 't|t' ],
		redlock_try_all      => [ "SELECT redlock_try_all('{n}', scope => 'session'), redlock_release('n')", 't|t' ],
		redlock_try_detached => [ "SELECT redlock_release('t', redlock_try_detached('t', '1 min'))", 't' ],
		redlock_check        => [ "SELECT redlock_check('n') > '0'", 't' ],
		redlock_token        => [ "SELECT redlock_token('n') > 0", 't' ],
		redlock_fence        => [ "SELECT redlock_fence('n') = redlock_token('n')", 't' ],
		redlock_locks        => [ "SELECT resource, state, scope, database FROM redlock_locks WHERE pid = pg_backend_pid()", "n|held|session|$db" ],
		redlock_lease_rows   => [ "SELECT count(*) FROM redlock_lease_rows() l WHERE l.token > 0 AND l.since <= now()", '1' ],
		redlock_lock_rows    => [ "SELECT mode, count(*) FROM redlock_lock_rows() l WHERE l.token > 0 AND l.since <= now() AND l.until > now() AND l.role > 0 GROUP BY mode", 'exclusive|1' ],
		redlock_nodes        => [ "SELECT count(*) FROM redlock_nodes WHERE state = 'ready' AND votes_yes > 0", '3' ],
		redlock_node_rows    => [ 'SELECT count(*) FROM redlock_node_rows()', '3' ],
		redlock_node_list_rows => [ "SELECT count(*) FROM redlock_node_list_rows() WHERE list = 'now'", '3' ],
		redlock_hosts        => [ 'SELECT prefix, nodes, agrees FROM redlock_hosts', 'redlock:|3|t' ],
		redlock_roles        => [ 'SELECT new_names > 0 FROM redlock_roles', 't' ],
		redlock_role_rows    => [ 'SELECT new_names > 0 FROM redlock_role_rows()', 't' ],
		redlock_host_rows    => [ 'SELECT nodes FROM redlock_host_rows()', '3' ],
		redlock_stats        => [ 'SELECT granted > 0, locks, broker_pid > 0 FROM redlock_stats', 't|1|t' ],
		redlock_stats_row    => [ 'SELECT locks FROM redlock_stats_row()', '1' ],
		redlock_stat_nodes   => [ 'SELECT count(*) FROM redlock_stat_nodes WHERE answers > 0', '3' ],
		redlock_stat_node_rows => [ 'SELECT count(*) FROM redlock_stat_node_rows()', '3' ],
		redlock_stat_resources => [ "SELECT from_nodes > 0 FROM redlock_stat_resources WHERE resource = 'n'", 't' ],
		redlock_stat_resource_rows => [ "SELECT lost FROM redlock_stat_resource_rows() WHERE resource = 'n'", '0' ],
		redlock_stat_reset   => [ 'SELECT redlock_stat_reset(); SELECT count(*) FROM redlock_stat_resources', "\n0" ],
		redlock_unsettled_row => [ 'SELECT unsettled FROM redlock_unsettled_row()', '0' ],
		redlock_counter_row => [ 'SELECT locks, taken_idle, recalled FROM redlock_counter_row()', '1|0|0' ],
		redlock_fences       => [ "SELECT resource FROM redlock_fences WHERE resource = 'n'", 'n' ],
		redlock_run          => [ "CALL redlock_run('n', 'DO \$\$ BEGIN END \$\$', '1 s', '30 s', '1 ms', '1 min')", '' ],
		redlock_run_all      => [ "CALL redlock_run_all('{n,m}', 'SELECT redlock_check(''m'')')", '' ],
		redlock_runs         => [ 'SELECT count(*) FROM redlock_runs', '0' ],
		redlock_lock         => [ "CALL redlock_lock('n')", '' ],
		redlock_lock_all     => [ "CALL redlock_lock_all('{n}'); SELECT redlock_release('n')", 't' ],
		redlock_release      => [ "SELECT redlock_release('n')", 't' ],
		redlock_release_all  => [ 'SELECT redlock_release_all()', '1' ],
		redlock_holder       => [ "SELECT state, nodes FROM redlock_holder('n')", "held|3" ],
		redlock_holders      => [ "SELECT count(*) FROM redlock_holders('n') WHERE state = 'held'", "1" ],
		redlock_last_run     => [ "SELECT status, nodes, of_nodes FROM redlock_last_run('n')", "|0|3" ],
		redlock_is_locked    => [ "SELECT redlock_is_locked('n')", "t" ],
		redlock_waiters      => [ "SELECT count(*) FROM redlock_waiters('n')", "0" ],
		redlock_inspect      => [ "SELECT count(*) FROM redlock_inspect('n') WHERE value IS NOT NULL", "3" ],
		redlock_release_wanted => [ "SELECT redlock_release_wanted('n')", 'f' ],
		redlock_ask_release  => [ "SELECT redlock_ask_release('nothing') IS NULL", 't' ],
		redlock_force_release => [ "SELECT redlock_force_release('nothing') IS NULL", "t" ],
		redlock_diagnose     => [ "SELECT count(*) FROM redlock_diagnose() WHERE subject = 'extension' AND severity = 'ok'", '1' ],
		redlock_release_idle => [ 'SELECT redlock_release_idle()', '0' ],
		redlock_fence_merge  => [
			"SET session_replication_role = replica;"
			  . " UPDATE redlock_fences SET token = 1 WHERE resource = 'n';"
			  . " RESET session_replication_role; SELECT token > 1 FROM redlock_fences WHERE resource = 'n'", 't' ],
		redlock_runs_merge   => [
			'CREATE TABLE any_table (); CREATE TRIGGER t BEFORE INSERT ON any_table FOR EACH ROW EXECUTE FUNCTION redlock_runs_merge();'
			  . ' INSERT INTO any_table DEFAULT VALUES', 'redlock_runs_merge is for the rows of redlock_runs only' ],
		redlock_shared_fences => [
			"SELECT redlock_acquire('s', scope => 'session', mode => 'shared') = redlock_fence('s'), redlock_release('s'), count(*)"
			  . " FROM redlock_shared_fences HAVING count(*) = 0", 't|t|0' ],
		redlock_shared_fences_merge => [
			'CREATE TABLE other_table (); CREATE TRIGGER t BEFORE INSERT ON other_table FOR EACH ROW EXECUTE FUNCTION redlock_shared_fences_merge();'
			  . ' INSERT INTO other_table DEFAULT VALUES', 'redlock_shared_fences_merge is for new rows of redlock_shared_fences only' ],
		redlock_grant        => [ "SELECT redlock_grant('pg_monitor', 'n')", 't' ],
		redlock_grants       => [ 'SELECT role, pattern FROM redlock_grants', 'pg_monitor|n' ],
		redlock_revoke       => [ "SELECT redlock_revoke('pg_monitor', 'n')", 't' ],
		redlock_grants_change => [
			'CREATE TABLE third_table (); CREATE TRIGGER t BEFORE INSERT ON third_table FOR EACH ROW EXECUTE FUNCTION redlock_grants_change();'
			  . ' INSERT INTO third_table DEFAULT VALUES', 'redlock_grants_change is for the rows of redlock_grants only' ],
		redlock_scope        => [ "SELECT enum_range(NULL::redlock_scope)::text ~ '^{transaction,call,session(,detached)?}\$'", 't' ],
		redlock_extend       => [
			"WITH d AS MATERIALIZED (SELECT redlock_acquire('d', scope => 'detached', hold_at_most => '1 min') AS token)"
			  . " SELECT redlock_extend('d', token, '2 min') > now() + '1 min', redlock_check('d', token) > '0' FROM d", 't|t' ],
		redlock_attach       => [
			"BEGIN; SELECT redlock_attach('d', token) FROM redlock_locks WHERE resource = 'd'; COMMIT;"
			  . " SELECT redlock_release('d', token) FROM redlock_locks WHERE resource = 'd'", "\nt" ],
	);
	# a call may build on earlier calls
	my @order = qw(redlock_acquire redlock_try redlock_acquire_all redlock_try_all redlock_try_detached redlock_check redlock_token redlock_fence redlock_locks
	  redlock_holder redlock_holders redlock_is_locked redlock_last_run redlock_waiters redlock_inspect redlock_release_wanted redlock_ask_release redlock_force_release redlock_diagnose
	  redlock_lease_rows redlock_lock_rows redlock_nodes redlock_node_rows redlock_node_list_rows redlock_stats
	  redlock_stats_row redlock_counter_row redlock_unsettled_row redlock_fences
	  redlock_run redlock_run_all redlock_lock_all redlock_release redlock_release_all redlock_lock redlock_release_idle redlock_fence_merge redlock_scope
	  redlock_hosts redlock_host_rows redlock_runs redlock_runs_merge redlock_extend redlock_attach
	  redlock_shared_fences redlock_shared_fences_merge redlock_roles redlock_role_rows
	  redlock_grant redlock_grants redlock_revoke redlock_grants_change
	  redlock_stat_nodes redlock_stat_node_rows redlock_stat_resources redlock_stat_resource_rows redlock_stat_reset);
	my %member = map { $_ => 1 } split /\n/, $s->query(<<'SQL');
SELECT coalesce(p.proname, c.relname, t.typname)
  FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
  LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
  LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
  LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid AND t.typtype = 'e'
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'redlock_pg'
   AND coalesce(p.proname, c.relname, t.typname) IS NOT NULL
SQL

	foreach my $name (@order)
	{
		next unless delete $member{$name};
		# the last node may answer long after the grant
		wait_until(sub { $s->query('SELECT count(*) FROM redlock_node_rows() WHERE votes_yes > 0') eq '3' }, "$what: all nodes have voted")
		  if $name eq 'redlock_nodes';
		my $result = $s->run($works{$name}[0]);
		is("$result->{out}$result->{message}", $works{$name}[1], "$what: $name");
	}
	is_deeply([ sort keys %member ], [], "$what: nothing else is there");
	$s->quit;
	return;
}

# Drops roles of a database that still exists, as an administrator does.
sub drops_roles
{
	my ($db, $what, @roles) = @_;
	my $roles = join ', ', @roles;
	my $s = session($host, dbname => $db);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s->query("REASSIGN OWNED BY $roles TO CURRENT_USER; DROP OWNED BY $roles");
	is(join("\n", grep { $_ ne '' } map { $s->run("DROP ROLE $_")->{message} } @roles), '', $what);
	$s->quit;
	return;
}

$host->safe_psql('postgres', 'CREATE DATABASE fresh');
$host->safe_psql('fresh', 'CREATE EXTENSION redlock_pg');
my $fresh = $host->safe_psql('fresh', $inventory);
my %fresh_interfaces = interfaces('fresh');

cmp_ok(scalar(() = $fresh =~ /^comment /mg), '>', 20, 'comments are compared');
cmp_ok(scalar(() = $fresh =~ /^initial privileges /mg), '>', 3, 'initial privileges are compared');
cmp_ok(scalar(@earlier), '>', 0, 'there is an earlier release');

foreach my $version (@earlier)
{
	my $db = "from_$version" =~ tr/./_/r;

	is($host->safe_psql('postgres',
			"SELECT path FROM pg_extension_update_paths('redlock_pg') WHERE source = '$version' AND target = '$now'") ne '',
		1, "$version: there is a way to $now");

	$host->safe_psql('postgres', "CREATE DATABASE $db");
	$host->safe_psql($db, "CREATE EXTENSION redlock_pg VERSION '$version'");

	my %interfaces = interfaces($db);
	is_deeply(
		[ map { "$_|$interfaces{$_}" } sort keys %interfaces ],
		[ map { "$_|" . ($fresh_interfaces{$_} // $interfaces{$_}) } sort keys %interfaces ],
		"$version: its C functions take and return what they did");
	calls_work($db, "$version before the update");

	# objects of users on top of the extension, and objects of a stranger beside the extension
	$host->safe_psql($db, <<'SQL');
CREATE ROLE stranger;
GRANT CREATE ON SCHEMA public TO stranger;
SET ROLE stranger;
CREATE FUNCTION redlock_lock(int) RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1';
CREATE TABLE redlock_update AS SELECT 'redlock_check'::name AS proname, oid AS proowner, ARRAY[]::aclitem[] AS proacl FROM pg_roles WHERE rolname = current_user;
RESET ROLE;
CREATE ROLE worker;
CREATE VIEW my_locks AS SELECT * FROM redlock_locks;
CREATE VIEW my_nodes AS SELECT * FROM redlock_nodes;
CREATE VIEW my_stats AS SELECT * FROM redlock_stats;
CREATE FUNCTION my_scope(s redlock_scope DEFAULT 'session') RETURNS redlock_scope LANGUAGE sql RETURN s;
CREATE TABLE unupdated AS SELECT * FROM redlock_fences WITH NO DATA;
REVOKE EXECUTE ON FUNCTION redlock_release_all FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redlock_release_all TO worker;
REVOKE EXECUTE ON FUNCTION redlock_try FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redlock_try TO worker WITH GRANT OPTION;
ALTER PROCEDURE redlock_run OWNER TO worker;
REVOKE EXECUTE ON FUNCTION redlock_lease_rows, redlock_stats_row, redlock_node_rows FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redlock_stats_row TO worker;
SQL
	my $holder = session($host, dbname => $db);
	my $token  = $holder->query("SELECT redlock_acquire('held', scope => 'session')");
	$holder->query("SELECT redlock_fence('held')");
	$holder->query('CREATE TEMP TABLE kept AS SELECT * FROM my_nodes');
	$host->safe_psql($db, 'INSERT INTO unupdated SELECT * FROM redlock_fences');

	$host->safe_psql($db, 'ALTER EXTENSION redlock_pg UPDATE');

	is($host->safe_psql($db, 'SELECT count(*) FROM unupdated'), '2', "$version: there are fences");
	is($host->safe_psql($db, '(TABLE redlock_fences EXCEPT TABLE unupdated) UNION (TABLE unupdated EXCEPT TABLE redlock_fences)'),
		'', "$version: fences are kept");
	is($holder->query("SELECT redlock_token('held') = $token, redlock_check('held') > '0', redlock_fence('held') = $token"),
		't|t|t', "$version: a lock that is held stays held");
	is($holder->query("SELECT redlock_release('held')"), 't', "$version: and is released");
	# a released lock is shown until all nodes have acknowledged the release
	wait_until(sub { $host->safe_psql($db, 'SELECT count(*) FROM my_locks, my_nodes, my_stats') eq '0' },
		"$version: views of users work");
	is($host->safe_psql($db, <<'SQL'), 'f|t', "$version: privileges that were changed stay so");
SELECT has_function_privilege('public', 'redlock_release_all()', 'EXECUTE'),
       has_function_privilege('worker', 'redlock_release_all()', 'EXECUTE')
SQL
	is($host->safe_psql($db, <<'SQL'), <<'SQL' =~ s/\n$//r, "$version: also behind the views");
SELECT f, has_function_privilege('public', f || '()', 'EXECUTE'), has_function_privilege('worker', f || '()', 'EXECUTE')
  FROM unnest(ARRAY['redlock_lock_rows', 'redlock_counter_row', 'redlock_unsettled_row', 'redlock_node_rows', 'redlock_node_list_rows']) f
SQL
redlock_lock_rows|f|f
redlock_counter_row|f|t
redlock_unsettled_row|f|t
redlock_node_rows|f|f
redlock_node_list_rows|f|f
SQL
	is($host->safe_psql($db, <<'SQL'), <<'SQL' =~ s/\n$//r, "$version: also of functions that have further arguments now, as a dump has them");
SELECT p.proname, CASE WHEN p.proowner = 10 THEN 'superuser' ELSE p.proowner::regrole::text END, a.grantee::regrole, a.is_grantable, i.initprivs
  FROM pg_proc p LEFT JOIN aclexplode(p.proacl) a ON true
  LEFT JOIN pg_init_privs i ON i.classoid = 'pg_proc'::regclass AND i.objoid = p.oid
 WHERE p.proname IN ('redlock_acquire', 'redlock_acquire_all', 'redlock_run', 'redlock_run_all')
       OR (p.proname IN ('redlock_try', 'redlock_try_all', 'redlock_try_detached') AND a.grantee <> a.grantor)
 ORDER BY 1
SQL
redlock_acquire|superuser|||
redlock_acquire_all|superuser|||
redlock_run|worker|||
redlock_run_all|worker|||
redlock_try|superuser|worker|t|
redlock_try_all|superuser|worker|t|
redlock_try_detached|superuser|worker|t|
SQL
	$holder->quit;
	is($host->safe_psql($db, "SELECT proname || ' ' || proowner::regrole FROM pg_proc WHERE proowner = 'stranger'::regrole"),
		'redlock_lock stranger', "$version: functions of others stay theirs, and ours ours");
	$host->safe_psql($db, 'DROP FUNCTION redlock_lock(int); DROP TABLE redlock_update');
	calls_work($db, "$version after the update");
	drops_roles($db, "$version: roles with changed privileges can be dropped", qw(worker stranger));
	$host->safe_psql('postgres', "DROP DATABASE $db");

	# without objects of a user
	$host->safe_psql('postgres', "CREATE DATABASE $db");
	$host->safe_psql($db, "CREATE EXTENSION redlock_pg VERSION '$version'");
	$host->safe_psql($db, 'ALTER EXTENSION redlock_pg UPDATE');
	is(differences($host->safe_psql($db, $inventory), $fresh),
		'', "$version: after the update all is as in a fresh $now");
	$host->safe_psql('postgres', "DROP DATABASE $db");

	# a role other than the owner updates
	$host->safe_psql('postgres', "CREATE DATABASE $db");
	$host->safe_psql($db, <<SQL);
CREATE ROLE former SUPERUSER;
CREATE ROLE updater SUPERUSER;
CREATE ROLE owner;
SET ROLE former;
CREATE EXTENSION redlock_pg VERSION '$version';
REVOKE EXECUTE ON FUNCTION redlock_acquire FROM PUBLIC;
RESET ROLE;
REASSIGN OWNED BY former TO owner;
SET ROLE updater;
ALTER EXTENSION redlock_pg UPDATE;
SQL
	calls_work($db, "$version of another owner after the update");
	my $reader = session($host, dbname => $db);
	is($reader->run("SELECT redlock_acquire('shared', mode => 'shared', scope => 'session') = redlock_fence('shared')")->{out},
		't', "$version of another owner: a fence of a shared lock");
	$reader->quit;
	drops_roles($db, "$version of another owner: the role that ran the update can be dropped", qw(updater former owner));
	$host->safe_psql('postgres', "DROP DATABASE $db");
}

# ---- default privileges for a role ----

# A database in which new tables and functions are open to a role.
sub open_to_role
{
	my ($db, @then) = @_;

	$host->safe_psql('postgres', "CREATE DATABASE $db");
	$host->safe_psql($db, $_) foreach <<'SQL', @then;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT EXECUTE ON ROUTINES TO app;
SQL
	return;
}

$host->safe_psql('postgres', 'CREATE ROLE app');
open_to_role('open_fresh', 'CREATE EXTENSION redlock_pg');
foreach my $version (@earlier)
{
	my $db = "open_$version" =~ tr/./_/r;

	open_to_role($db, "CREATE EXTENSION redlock_pg VERSION '$version'", 'ALTER EXTENSION redlock_pg UPDATE');
	is(differences($host->safe_psql($db, $inventory), $host->safe_psql('open_fresh', $inventory)),
		'', "$version: default privileges for a role leave the update as a fresh $now");
	$host->safe_psql('postgres', "DROP DATABASE $db");

	$host->safe_psql('postgres', 'CREATE ROLE cleaner');
	open_to_role($db, "CREATE EXTENSION redlock_pg VERSION '$version'", 'GRANT UPDATE ON redlock_fences TO cleaner', <<'SQL');
REVOKE EXECUTE ON FUNCTION redlock_acquire FROM PUBLIC, app;
ALTER EXTENSION redlock_pg UPDATE;
SQL
	is($host->safe_psql($db, <<'SQL'),
SELECT DISTINCT p.proname
  FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid JOIN pg_proc p ON p.oid = d.objid
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
   AND e.extname = 'redlock_pg' AND has_function_privilege('app', p.oid, 'EXECUTE')
   AND p.proname ~ '^redlock_(acquire|lock|extend|attach|try|run)(_all|_detached)?$'
 ORDER BY 1
SQL
		join("\n", qw(redlock_run redlock_run_all redlock_try redlock_try_all redlock_try_detached)),
		"$version: a right that was revoked stays so, in spite of default privileges");
	is($host->safe_psql($db, <<'SQL'), 'redlock_fences cleaner UPDATE', "$version: only an administrator's own GRANT lets a role write the tables");
SELECT concat_ws(' ', c.relname, a.grantee::regrole, a.privilege_type)
  FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid JOIN pg_class c ON c.oid = d.objid, aclexplode(c.relacl) a
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
   AND e.extname = 'redlock_pg' AND a.grantee <> c.relowner AND a.privilege_type <> 'SELECT'
SQL
	drops_roles($db, "$version: the role of this GRANT can be dropped", 'cleaner');
	$host->safe_psql('postgres', "DROP DATABASE $db");
}
drops_roles('open_fresh', 'a role with default privileges can be dropped', 'app');
$host->safe_psql('postgres', 'DROP DATABASE open_fresh');

calls_work('fresh', "fresh $now");

# ---- a role with CREATE on the schema of the extension ----

# A database with objects of the role.  The objects count their calls, and make the role a superuser
# if a superuser calls them.
sub beside_stranger
{
	my ($db, @before) = @_;

	$host->safe_psql('postgres', "CREATE DATABASE $db");
	$host->safe_psql('postgres', 'CREATE ROLE stranger');
	$host->safe_psql($db, $_) foreach @before, <<'SQL';
GRANT CREATE ON SCHEMA public TO stranger;
SET ROLE stranger;
CREATE SEQUENCE calls;
CREATE FUNCTION rise() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.nextval('public.calls');
    ALTER ROLE stranger SUPERUSER;
    RETURN 0;
END $$;
CREATE FUNCTION rise_by_row() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM public.rise(); RETURN coalesce(NEW, OLD); END';
SQL
	return session($host, dbname => $db);
}

# Operators and functions with the types of the scripts' operands, or similar types.  pg_catalog
# lacks an exact match.  Each result is right.
my $operators = <<'SQL';
SET ROLE stranger;
CREATE FUNCTION same(oid, regclass) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS
    'BEGIN PERFORM public.rise(); RETURN pg_catalog.oideq($1, $2); END';
CREATE FUNCTION same(oid, integer) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS
    'BEGIN PERFORM public.rise(); RETURN pg_catalog.oideq($1, $2::oid); END';
CREATE OPERATOR = (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = same);
CREATE OPERATOR = (LEFTARG = oid, RIGHTARG = integer, FUNCTION = same);
CREATE FUNCTION format(text, regprocedure) RETURNS text LANGUAGE plpgsql AS
    'BEGIN PERFORM public.rise(); RETURN pg_catalog.format($1, $2); END';
CREATE FUNCTION format(text, regprocedure, text, text) RETURNS text LANGUAGE plpgsql AS
    'BEGIN PERFORM public.rise(); RETURN pg_catalog.format($1, $2, $3, $4); END';
CREATE FUNCTION format(text, regprocedure, regrole) RETURNS text LANGUAGE plpgsql AS
    'BEGIN PERFORM public.rise(); RETURN pg_catalog.format($1, $2, $3); END';
SQL

sub is_harmless
{
	my ($session, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($session->query("SELECT is_called, rolsuper FROM calls, pg_roles WHERE rolname = 'stranger'"), 'f|f', $what);
	$session->query('SELECT setval($$calls$$, 1, false); ALTER ROLE stranger NOSUPERUSER');
	return;
}

sub away_with_stranger
{
	my ($session, $db) = @_;

	$session->quit;
	$host->safe_psql('postgres', "DROP DATABASE $db");
	$host->safe_psql('postgres', 'DROP ROLE stranger');
	return;
}

foreach my $version (@earlier, $now)
{
	my $db = "beside_$version" =~ tr/./_/r;
	my $updates = $version ne $now;
	my $s = beside_stranger($db, $updates
		? ("CREATE EXTENSION redlock_pg VERSION '$version'", 'REVOKE EXECUTE ON FUNCTION redlock_try FROM PUBLIC')
		: ());

	$host->safe_psql($db, $operators);
	$host->safe_psql($db, $updates ? 'ALTER EXTENSION redlock_pg UPDATE' : 'CREATE EXTENSION redlock_pg');
	is_harmless($s, "$version: " . ($updates ? 'an update' : 'an installation') . ' calls no operator or function of another role');
	is($s->query("SELECT extversion FROM pg_extension WHERE extname = 'redlock_pg'"), $now, '... and has succeeded');
	$s->query("SELECT redlock_acquire('n', scope => 'session')");
	is($s->query('SELECT resource, state FROM redlock_locks WHERE pid = pg_backend_pid()'), 'n|held', '... as a view works');
	is_harmless($s, '... which calls none either');
	is($s->run('DROP OWNED BY stranger')->{message}, '', '... nor depends on any');
	is(differences($s->query($inventory), $fresh), '', '... and all is as without the other role') unless $updates;
	away_with_stranger($s, $db);
}

{
	my $s = beside_stranger('beside', 'CREATE EXTENSION redlock_pg');

	$s->query("SELECT redlock_acquire('n', scope => 'session'), redlock_acquire('s', scope => 'session', mode => 'shared')");
	# objects of 0.2.0 with another role's table of runs
	$s->query('ALTER TABLE redlock_runs RENAME TO kept_runs');
	$host->safe_psql('beside', <<'SQL');
SET ROLE stranger;
CREATE TABLE redlock_runs (LIKE kept_runs INCLUDING ALL);
CREATE TRIGGER rise BEFORE INSERT ON redlock_runs FOR EACH ROW EXECUTE FUNCTION rise_by_row();
SQL
	is($s->run("CALL redlock_run('job', 'SELECT 1', record => true)")->{state}, '42P01', 'redlock_run with a table of runs of another role');
	is_harmless($s, '... uses none of it');
	$s->query('DROP TABLE redlock_runs; SET client_min_messages = warning; DROP EXTENSION redlock_pg');

	# locks may outlive the objects through which the session acquired the locks
	$s->query("CREATE EXTENSION redlock_pg VERSION '0.1.0'");
	$host->safe_psql('beside', <<'SQL');
SET ROLE stranger;
CREATE VIEW redlock_shared_fences AS SELECT 'n'::text AS resource, rise() AS token;
SQL
	is($s->run("SELECT redlock_fence('n') = redlock_token('n')")->{out}, 't', '0.1.0: a fence works beside a view redlock_shared_fences of another role');
	is_harmless($s, '... and does not read the view');
	$s->query('DROP VIEW redlock_shared_fences');
	$host->safe_psql('beside', <<'SQL');
SET ROLE stranger;
CREATE TABLE redlock_shared_fences (id uuid DEFAULT gen_random_uuid(), resource text, token bigint, passed_at timestamptz);
INSERT INTO redlock_shared_fences VALUES (DEFAULT, 'n', 1, now()), (DEFAULT, 's', 1, now());
CREATE TRIGGER rise BEFORE INSERT OR DELETE ON redlock_shared_fences FOR EACH ROW EXECUTE FUNCTION rise_by_row();
SQL
	is($s->run("SELECT redlock_fence('n') = redlock_token('n')")->{out}, 't', '0.1.0: a fence works beside a table redlock_shared_fences of another role');
	is_harmless($s, '... and deletes none of its rows');
	like($s->run("SELECT redlock_fence('s')")->{message}, qr/^schema "public" has no table redlock_shared_fences of redlock_pg/, '... the fence of a shared lock fails');
	is_harmless($s, '... and writes no row');
	$s->query("DROP TRIGGER rise ON redlock_shared_fences; INSERT INTO redlock_shared_fences VALUES (DEFAULT, 'n', 9223372036854775807, now())");
	is($s->run("SELECT redlock_fence('n') = redlock_token('n')")->{out}, 't', '... its tokens do not count');
	away_with_stranger($s, 'beside');
}

# An update before the restart meets the old library, which lacks a function of a new name.
# Scripts of extensions run with this setting.
my $result = psql_result($host, <<'SQL');
SET check_function_bodies = off; CREATE FUNCTION of_tomorrow() RETURNS int LANGUAGE C AS '$libdir/redlock_pg', 'redlock_of_tomorrow'
SQL
is($result->{state}, '42883', 'an update that needs a newer library fails');
like($result->{message}, qr/^could not find function "redlock_of_tomorrow" in file /, 'with the message that docs/reference/errors.md has');

done_testing();
