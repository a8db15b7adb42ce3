# How many new names of locks a role can bring in (redlock.max_new_names_per_hour).
#
# Protects from: an uncounted way to new names at the nodes (one lock, arrays, CALL, redlock_run,
# permits, shared and detached locks), or to new rows in redlock_fences; a role escaping by SET
# ROLE or a SECURITY DEFINER function; names counting twice, or when they are known, handed over
# or idle; an array counted in part; superusers refused; a limit shared by several roles.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.max_new_names_per_hour = 10");
my $number = 0;

# A session of a new role, with or without its own limit.
sub role
{
	my ($limit) = @_;
	my $name = 'role' . ++$number;

	$host->safe_psql('postgres', "CREATE ROLE $name");
	my $session = session($host);
	$session->query("SET redlock.max_new_names_per_hour = $limit") if defined $limit;
	$session->query("SET SESSION AUTHORIZATION $name");
	return $session;
}

# Number of new names of a role, by default of the last session's role.
sub brought_in
{
	my ($role) = @_;
	$role //= "role$number";
	return $host->safe_psql('postgres', "SELECT coalesce(max(new_names), 0) FROM redlock_roles WHERE role = '$role'");
}

sub refused
{
	my ($session, $sql, $description) = @_;
	my $result = $session->run($sql);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '53400', $description) or diag($result->{err});
	return $result;
}

# ---- each way to ask the nodes ----

{
	my $session = role();

	$session->query("SELECT redlock_try('one', scope => 'session')");
	is(brought_in(), 1, 'a name that is tried counts');
	$session->query("SELECT redlock_release('one')");
	$session->query("SELECT redlock_acquire('one', scope => 'session')") for 1 .. 3;
	$session->query('SELECT redlock_release_all()');
	is(brought_in(), 1, 'once');
	$session->query("SELECT redlock_acquire_all(ARRAY['one', 'two', 'three'], scope => 'session')");
	is(brought_in(), 3, 'of an array those that are new');
	$session->query('SELECT redlock_release_all()');
	$session->query("CALL redlock_lock('four', scope => 'session')");
	is(brought_in(), 4, 'by redlock_lock');
	$session->query("CALL redlock_run('five', 'SELECT 1')");
	is(brought_in(), 5, 'by redlock_run');
	$session->query("SELECT redlock_acquire('six', mode => 'shared', scope => 'session')");
	is(brought_in(), 6, 'in shared mode');
	$session->query("SELECT redlock_acquire('seven', scope => 'detached', hold_at_most => '1 min')");
	is(brought_in(), 7, 'detached');
	$session->query("SELECT redlock_acquire('permits', permits => 2, scope => 'session')");
	is(brought_in(), 8, 'a permit');
	my $other = session($host);
	$other->query("SELECT redlock_acquire('held', scope => 'session')");
	$session->query("SELECT redlock_try('held', scope => 'session')");
	is(brought_in(), 8, 'not a name that another session of this server has brought in');
	refused($session, "SELECT redlock_try_all(ARRAY['nine', 'ten', 'eleven'], scope => 'session')", 'an array with more than are left is refused');
	is(brought_in(), 8, 'and does not count');
	is($session->query("SELECT redlock_try_all(ARRAY['nine', 'ten'], scope => 'session')"), 't', 'the last ones');
	my $result = refused($session, "SELECT redlock_acquire('eleven')", 'the next is refused');
	is($result->{message}, "role \"role$number\" brings in too many new redlock names", 'which names the role');
	is($result->{detail},
		'The role has brought in 10 names or rows of redlock_fences within an hour that were new to this server, and redlock.max_new_names_per_hour is 10.',
		'how many it brought in, and how many it may');
	like($result->{hint}, qr/^Use fewer different names, or try again later\. Or let a superuser raise /, 'and says what to do');
	refused($session, "SELECT redlock_try('eleven', scope => 'session')", 'also a try');
	refused($session, "CALL redlock_run('eleven', 'SELECT 1')", 'and a run');
	refused($session, "CALL redlock_lock('eleven', scope => 'session')", 'and redlock_lock');
	refused($session, "SELECT redlock_try('more', permits => 3, scope => 'session')", 'and a permit');
	is($session->query("SELECT redlock_try('nine', scope => 'session')"), 't', 'a role over the limit acquires a held lock again');
	is($session->query('SELECT redlock_release_all()'), 6, 'and releases');
	is($session->query("SELECT redlock_try('one', scope => 'session')"), 't', 'as well as what it brought in before');
	is($host->safe_psql('postgres', "SELECT refused FROM redlock_roles WHERE role = 'role$number'"), 6, 'redlock_roles counts what was refused');
	is($host->safe_psql('postgres', "SELECT count(*) FROM redlock_locks WHERE resource IN ('eleven', 'more')"), 0, 'nothing is left of that');
	is(key_count('redlock:eleven', @nodes), 0, 'at no node');
	$session->quit;
	$other->quit;
}

# ---- which role a name counts for ----

{
	my $session = role();
	my $role = "role$number";

	$host->safe_psql('postgres', <<~SQL);
		CREATE ROLE other;
		GRANT other TO $role;
		CREATE FUNCTION by_superuser(name text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
		    AS \$\$ SELECT redlock_try(name, scope => 'session') \$\$;
		SQL
	$session->query('SET ROLE other');
	$session->query("SELECT redlock_try('as other', scope => 'session')");
	is(brought_in($role), 1, 'SET ROLE does not change whose names they are');
	is(brought_in('other'), 0, 'the role of SET ROLE has no new name');
	$session->query("SELECT by_superuser('definer ' || n) FROM generate_series(1, 9) n");
	is(brought_in($role), 10, 'nor does a SECURITY DEFINER function');
	refused($session, "SELECT by_superuser('definer 10')", 'of a superuser');
	$session->quit;

	my $superuser = session($host);
	$superuser->query("SELECT redlock_try_all(ARRAY(SELECT 'superuser ' || n FROM generate_series(1, 40) n), scope => 'session')");
	is($superuser->query("SELECT new_names >= 40 FROM redlock_roles WHERE role = current_user"), 't', 'superusers are counted, and not refused');
	$superuser->quit;
}

# ---- other limits ----

{
	my $session = role(-1);

	$session->query("SELECT redlock_try_all(ARRAY(SELECT 'any ' || n FROM generate_series(1, 40) n), scope => 'session')");
	is(brought_in(), 40, '-1: any number');
	$session->quit;
	$session = role(0);
	is($session->query("SELECT redlock_try('any 1', scope => 'session')"), 't', '0: names that are known');
	refused($session, "SELECT redlock_try('any new', scope => 'session')", 'and no others');
	is($session->run('SET redlock.max_new_names_per_hour = 100')->{state}, '42501', 'the role itself can not raise it');
	$session->quit;

	$host->safe_psql('postgres', 'CREATE ROLE batch LOGIN; ALTER ROLE batch SET redlock.max_new_names_per_hour = 20');
	is($host->safe_psql('postgres', "SELECT redlock_try_all(ARRAY(SELECT 'batch ' || n FROM generate_series(1, 20) n), scope => 'session')",
			extra_params => [ '-U', 'batch' ]), 't', 'a role can have a limit of its own');
	is($host->psql('postgres', "SELECT redlock_try('batch 21', scope => 'session')", extra_params => [ '-U', 'batch' ]), 3, 'which holds in its next session, too');
}

# ---- rows of redlock_fences ----

{
	my $session = role();

	$session->query("SELECT redlock_acquire_all(ARRAY['f1', 'f2', 'f3', 'f4'], scope => 'session')");
	$session->query("BEGIN; SELECT redlock_fence('f1'); SELECT redlock_fence('f1'); COMMIT");
	is(brought_in(), 5, 'the first row of a name counts');
	$session->query("SELECT redlock_fence('f1')");
	$session->query("SELECT redlock_release('f1')");
	$session->query("SELECT redlock_acquire('f1', scope => 'session')");
	$session->query("SELECT redlock_fence('f1')");
	is(brought_in(), 5, 'once');
	$session->query("SELECT redlock_acquire('f5', mode => 'shared', scope => 'session')");
	$session->query("SELECT redlock_fence('f5')");
	is(brought_in(), 7, 'also of readers');
	$session->query("SELECT redlock_fence('f5')");
	is(brought_in(), 7, 'once');
	$session->query("SELECT redlock_fence('f2'), redlock_fence('f3')");
	$session->query("CALL redlock_run('f1', 'SELECT 1', fence => true)");
	$session->query("SELECT redlock_try('f6', scope => 'session')");
	refused($session, "SELECT redlock_fence('f4')", 'a row too many is refused');
	refused($session, "SELECT redlock_fence('f6')", 'and so is the next');
	is($session->query("SELECT redlock_fence('f1') > 0"), 't', 'a row that is there is raised all the same');
	is($host->safe_psql('postgres', "SELECT string_agg(resource, ' ' ORDER BY resource) FROM redlock_fences"), 'f1 f2 f3 f5', 'what was refused left no row');
	$session->quit;
}

# ---- without the nodes ----

{
	my $session = role(1);

	$session->query("SELECT redlock_acquire('idle', scope => 'session', keep_idle => '1 min')");
	$session->query("SELECT redlock_release('idle')");
	$session->query('DISCARD ALL');
	my $granted = $host->safe_psql('postgres', 'SELECT granted FROM redlock_stats');
	my $next = role(0);

	is($next->query("SELECT redlock_try('idle', scope => 'session', keep_idle => '1 min')"), 't', 'an idle lease is taken');
	is($host->safe_psql('postgres', 'SELECT granted FROM redlock_stats'), $granted, 'without the nodes');
	is(brought_in(), 0, 'and brings in no name');
}

# ---- a restart forgets the known names ----

{
	$host->restart;
	wait_nodes_ready($host, 3);
	is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_roles'), 0, 'a server that starts knows no names');
	my $session = role(1);

	$session->query("SELECT redlock_try('one', scope => 'session')");
	is(brought_in(), 1, 'a known name counts as new after a restart');
	refused($session, "SELECT redlock_try('two', scope => 'session')", 'up to the limit');
}

done_testing();
