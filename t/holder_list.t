# redlock_holders: the locks of all hosts.
#
# Protects from: a lock of any host missing in the list; a lock of a minority shown as held; a list
# cut short, since many names come in many steps; a failure that names no node; two lists at
# a time; a role without the right making the nodes walk all keys.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(5);
my $conf  = "redlock.ttl = '60s'\nredlock.node_timeout = '2s'\nredlock.max_locks = 2000\nredlock.max_locks_per_session = 2000\nmax_locks_per_transaction = 400";
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => $conf);
my ($on_a, $also_a, $on_b) = map { session($_) } $host_a, $host_a, $host_b;

sub list
{
	my ($columns, $prefix) = @_;
	return $on_b->query("SELECT $columns FROM redlock_holders('$prefix') ORDER BY 1, 2");
}

is($on_b->query('SELECT count(*) FROM redlock_holders()'), 0, 'no locks');

$on_a->query("SELECT redlock_acquire('x:a', scope => 'session')");
$on_b->query("SELECT redlock_acquire('x:b', scope => 'session')");
$_->query("SELECT redlock_acquire('x:doc', scope => 'session', mode => 'shared')") foreach $on_a, $on_b;
$_->query("SELECT redlock_acquire('x:pool', scope => 'session', permits => 3)") foreach $on_a, $on_b;
$_->cli('SET', 'redlock:x:few', 'plain', 'PX', 60000) foreach @nodes[ 0, 1 ];
$on_a->query("SELECT redlock_acquire('y*[z]\\', scope => 'session')");
# A host begins with a permit of its own choice.
is(list('resource, permit, state, mode, cluster_name, cardinality(reader_hosts), permits, nodes', 'x:') =~ s/^(x:pool\|)[123]/${1}n/gmr =~ s/^(x:pool.*\|b\|.*)\n(x:pool.*\|a\|.*)/$2\n$1/mr,
	join("\n",
		'x:a||held|exclusive|a|||5', 'x:b||held|exclusive|b|||5', 'x:doc||held|shared||2||5', 'x:few||free|exclusive||||2',
		'x:pool|n|held|exclusive|a||3|5', 'x:pool|n|held|exclusive|b||3|5'),
	'locks of both hosts, each permit, and a lock of a minority')
  or diag(list('*', 'x:'));
$on_a->query("SELECT redlock_acquire('w:kept', scope => 'session', permits => 2, hold_at_least => '10 min')");
$on_a->query("SELECT redlock_release('w:kept')");
wait_until(sub { list('resource, state, kept_until > now()', 'w:') eq 'w:kept|kept|t' }, 'a released permit is kept');
$on_b->query("SELECT redlock_force_release('w:kept')");
is(list('resource, pid', 'x:a'), 'x:a|' . $on_a->pid, 'by the whole name');
is(list('resource, state', 'y*'), 'y*[z]\\|held', 'characters of patterns stand for themselves');
is(list('resource, state', 'y?'), '', 'and for no others');
is($on_b->query('SELECT count(*) FROM redlock_holders()'), 7, 'all locks');
is($on_b->run('SELECT redlock_holders(NULL)')->{state}, '22004', 'a prefix is needed');
is(list('resource, state', 'n' x 300), '', 'no lock has so long a name');
$_->cli('SET', "redlock:z\x01999999999999", 'x') foreach @nodes;
is(list('resource, state', 'z'), '', "a stranger's key like that of a permit");

# ---- many ----

$on_a->query("SELECT count(redlock_acquire('many ' || repeat('n', 200) || n, scope => 'session')) FROM generate_series(1, 1500) n");
is($on_b->query("SELECT count(*), count(DISTINCT resource), min(nodes), bool_and(cluster_name = 'a') FROM redlock_holders('many')"), '1500|1500|5|t',
	'many locks, in many steps');
my ($first, $second) = map { session($host_b) } 1, 2;
$_->send("SELECT count(*) FROM redlock_holders('many')") foreach $first, $second;
is($_->result->{out}, 1500, 'one list after the other') foreach $first, $second;
$first->send("SELECT count(*) FROM redlock_holders('many') a, redlock_holders('many') b WHERE a.resource = b.resource");
$host_b->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $first->pid . ')');
$first->result;
is($second->query("SELECT count(*) FROM redlock_holders('x')"), 6, 'a session that ends while it lists is in nobody\'s way');
$on_a->query('SELECT redlock_release_all()');

# ---- nodes ----

$nodes[$_]->pause foreach 3, 4;
is($on_b->query("SELECT count(*), max(of_nodes) FROM redlock_holders('x')"), '4|5', 'three of five nodes know all locks') or diag(list('*', 'x'));
$nodes[2]->pause;
my $result = $on_b->run("SELECT redlock_holders('x')");
is($result->{state}, '08006', 'two do not');
my $silent = join '|', map { quotemeta $_->address } @nodes[ 2 .. 4 ];
like($result->{detail}, qr/^The last failure: (?:$silent): no answer /, 'the error names a silent node');
$nodes[$_]->resume foreach 2 .. 4;
wait_nodes_ready($host_b, 5);
$_->cli('ACL', 'SETUSER', 'default', '-scan') foreach @nodes;
$result = $on_b->run("SELECT redlock_holders('x')");
is($result->{state}, '08006', 'a right is needed');
like($result->{message}, qr/^too few redlock nodes could be reached to list the locks$/, 'says the error');
like($result->{detail}, qr/^The last failure: .*; grant \+scan\.$/, 'and which');
$_->cli('ACL', 'SETUSER', 'default', '+scan') foreach @nodes;

$on_b->query('CREATE ROLE weak; SET ROLE weak');
is($on_b->run('SELECT redlock_holders()')->{state}, '42501', 'it is not for all roles');

$_->quit foreach $on_a, $also_a, $on_b, $first, $second;
done_testing();
