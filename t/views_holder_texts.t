# How a holder describes itself to other hosts.
#
# Protects from: a name imitating other words of the description; letters becoming '?'; a long
# name hiding the words behind it; a description outside of a database's encoding making an error
# or a view fail; a plain client's value taken for a host's description; a waiting reader
# shown as a holder.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my @nodes = redis_nodes(1);
my $conf  = "redlock.ttl = '60s'";
my $long  = 'cluster' x 9;
my $host_a = redlock_cluster('a', nodes => \@nodes, conf => $conf);
my $host_b = redlock_cluster('b', nodes => \@nodes, conf => "$conf\ndeadlock_timeout = '100ms'");
my $host_c = redlock_cluster($long, nodes => \@nodes, conf => "$conf\ndeadlock_timeout = '100ms'");

my $e       = "\xc3\xa9";        # in UTF-8
my $go      = "\xe8\xaa\x9e";    # not in LATIN1
my $machine = qr/host="[^"\\]+"/;

sub make_db
{
	my ($host, $name, $encoding) = @_;

	$host->safe_psql('postgres',
		qq{CREATE DATABASE $name TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'});
	$host->safe_psql($name =~ s/^"|"$//gr, 'CREATE EXTENSION redlock_pg');
	return;
}

sub value_of
{
	my ($name) = @_;
	return $nodes[0]->cli('--raw', 'GET', "redlock:$name") =~ s/^[0-9a-f]{32}:\d{9}:[0-9a-f]{16}=?[ ~]//r =~ s/\n\z//r;
}

sub refused
{
	my ($session, $name) = @_;
	my $result = $session->run("SELECT redlock_acquire('$name', wait => '0')");

	is($result->{state}, '55P03', "$name is held");
	return $result;
}

# ---- names of all kinds ----

make_db($host_a, 'utf8',   'UTF8');
make_db($host_a, 'latin1', 'LATIN1');
make_db($host_b, 'utf8',   'UTF8');
make_db($host_b, 'latin1', 'LATIN1');
make_db($host_b, 'koi8',   'KOI8R');
make_db($host_b, 'ascii',  'SQL_ASCII');

my $on_utf8 = session($host_a, dbname => 'utf8');
$on_utf8->query(q{SELECT set_config('client_encoding', 'UTF8', false)});
$on_utf8->query(qq{CREATE ROLE "${e}${go} pid=1 user=postgres"; CREATE ROLE "a""b\\c"; CREATE ROLE "e\xcc\x81"});
my $pid = $on_utf8->pid;

$on_utf8->query(qq{SET SESSION AUTHORIZATION "${e}${go} pid=1 user=postgres"});
$on_utf8->query("SELECT redlock_acquire('letters', scope => 'session')");
my $letters = qr/cluster="a" $machine database="utf8" pid=$pid user="${e}${go} pid=1 user=postgres"/;
like(value_of('letters'), qr/^$letters\z/, 'a name is quoted, in UTF-8, and imitates nothing');
$on_utf8->query('RESET SESSION AUTHORIZATION');

$on_utf8->query('SET SESSION AUTHORIZATION "a""b\\c"');
$on_utf8->query("SELECT redlock_acquire('quotes', scope => 'session')");
like(value_of('quotes'), qr/ user="a\\"b\\\\c"\z/, 'quotes and backslashes have a backslash');
$on_utf8->query('RESET SESSION AUTHORIZATION');

my %shown = (
	utf8   => "$e$go",
	latin1 => '\xe9' . '\\\\xe8\\\\xaa\\\\x9e',
	koi8   => '\\\\xc3\\\\xa9\\\\xe8\\\\xaa\\\\x9e',
	ascii  => "$e$go");
foreach my $db (sort keys %shown)
{
	my $s = session($host_b, dbname => $db);

	$s->query("SELECT set_config('client_encoding', getdatabaseencoding(), false)");
	my $result = refused($s, 'letters');
	like($result->{detail}, qr/^The lock was granted to: cluster="a" $machine database="utf8" pid=$pid user="$shown{$db} pid=1 user=postgres"\.$/,
		"$db: the detail says who holds it");
	like($result->{hint}, qr/^See the view redlock_locks on that server: another session there may hold the lock by now/, "$db: and that it is a server");

	my $waiter = session($host_b, dbname => $db);
	$waiter->send("SELECT redlock_acquire('letters')");
	ok( $host_b->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'letters' AND held_by IS NOT NULL"),
		"$db: a session waits");
	like($s->query("SELECT held_by FROM redlock_locks WHERE resource = 'letters'"), qr/ user="$shown{$db} pid=1/, "$db: the view shows it");
	is($s->query("SELECT holder_cluster_name, strpos(held_by, 'host=\"' || holder_host || '\"') > 0, holder_database, strpos(held_by, 'user=\"' || holder_role || '\"') > 0, holder_pid FROM redlock_locks WHERE resource = 'letters'"),
		"a|t|utf8|t|$pid", "$db: and each word in a column");
	$host_b->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	is($waiter->result->{state}, '57014', "$db: until it is cancelled");
	$_->quit foreach $s, $waiter;
}

# a database with another encoding writes UTF-8
my $on_latin1 = session($host_a, dbname => 'latin1');
$on_latin1->query("SELECT set_config('client_encoding', 'UTF8', false)");
$on_latin1->query(qq{CREATE ROLE "latin $e"; SET SESSION AUTHORIZATION "latin $e"});
$on_latin1->query("SELECT redlock_acquire('latin', scope => 'session')");
like(value_of('latin'), qr/ database="latin1" pid=\d+ user="latin $e"\z/, 'the node has UTF-8 from a database in LATIN1');
# on the same server, the name of this role is no text in the encoding of the other database
my $beside = session($host_a, dbname => 'utf8');
like(refused($beside, 'latin')->{detail}, qr/ \(database "latin1", role "latin \\xe9"\) has held/, 'bytes of another encoding are escaped');
$beside->query("CALL redlock_run('latin', 'SELECT 1', record => true)");
is($beside->query("SELECT convert_from(convert_to(message, 'UTF8'), 'UTF8') LIKE '%role \"latin \\\\xe9\"%' FROM redlock_runs WHERE resource = 'latin'"), 't', '... also in redlock_runs');
$beside->quit;
$on_latin1->quit;

# ---- long names ----

my $on_c = session($host_c);
my $role = 'r' x 63;
$on_c->query("CREATE ROLE $role; SET SESSION AUTHORIZATION $role");
$on_c->query("SELECT redlock_acquire('long', scope => 'session')");
like(value_of('long'), qr/^cluster="(?:cluster)+\w*"\.\.\. $machine(?:\.\.\.)? database="postgres" pid=\d+ user="r+"\.\.\.\z/,
	'each long name is cut, and no word is missing');
cmp_ok(length value_of('long'), '<=', 159, 'so the whole fits');
my $long_name = 'n' x 250;
$on_c->query("SELECT redlock_acquire('$long_name', scope => 'session')");
like(value_of($long_name), qr/^cluster="(?:cluster)+\w*"\.\.\. .*pid=\d+/, 'the process is told under a long name of a lock, too');
$on_c->quit;

# ---- values of plain clients, and of hosts with 0.1.0 ----

my $on_b = session($host_b);
foreach my $value ('permits=3 host=x', 'permits=3 plain', 'host=x pid=1', 'cluster="a" host="x"', 'those who share it, last to join: x')
{
	$nodes[0]->cli('SET', 'redlock:foreign', $value, 'PX', 600000);
	foreach my $permits ('', ', permits => 2')
	{
		my $result = $on_b->run("SELECT redlock_acquire('foreign', scope => 'session', wait => '0'$permits)");

		is($result->{state}, '55P03', "a plain client's $value does not tell how many permits a lock has");
		is($result->{hint} // '', '', 'nor of which server it is');
		$on_b->query("SELECT redlock_release('foreign')") if $permits;
	}
}
my $behind = session($host_b);
$nodes[0]->cli('SET', 'redlock:foreign', 'cluster="a" host="x" pid=1', 'PX', 600000);
$behind->send("SELECT redlock_acquire('foreign')");
ok($host_b->poll_query_until('postgres', "SELECT held_by LIKE '%pid=1' FROM redlock_locks WHERE resource = 'foreign'"), 'a session waits for a plain client');
is($host_b->safe_psql('postgres', "SELECT num_nonnulls(holder_cluster_name, holder_host, holder_pid) FROM redlock_locks WHERE resource = 'foreign'"),
	'0', 'whose value is no description');
$nodes[0]->cli('DEL', 'redlock:foreign');
$behind->result;
$behind->quit;

my $head = '0123456789abcdef' x 2 . ':000000001:' . 'fedcba9876543210 ';
$nodes[0]->cli('SET', 'redlock:old', "${head}host=db1 database=mydb pid=677 user=a$go cluster=\xff", 'PX', 600000);
my $result = refused($on_b, 'old');
is($result->{detail}, "The lock was granted to: host=db1 database=mydb pid=677 user=a$go cluster=?.", 'a host of 0.1.0 is shown as it wrote itself');
like($result->{hint}, qr/^See the view redlock_locks on that server/, 'and is a host');

# ---- a deadlock of hosts ----

my ($first, $second) = (session($host_b, dbname => 'latin1'), session($host_c));
$first->query("SELECT set_config('client_encoding', 'UTF8', false)");
$second->query("SELECT set_config('client_encoding', 'UTF8', false)");
my ($name_1, $name_2) = ("one $e", "two $go " . $e x 100);
$_->query('BEGIN') foreach $first, $second;
$first->query("SELECT redlock_acquire('one $e')");
$second->query("SELECT redlock_acquire('two')");
$second->send("SELECT redlock_acquire('one $e')");
$first->send("SELECT redlock_acquire('two')");
my @results = map { $_->result } $first, $second;
my ($victim) = grep { $_->{state} eq '40P01' } @results;
ok($victim, 'a deadlock is found');
like($victim->{detail}, qr/waits for redlock "one $e"; blocked by/, 'which names its locks, with all letters, in any database');
$_->query('ROLLBACK') foreach $first, $second;
$_->query('BEGIN') foreach $first, $second;
$second->query("SELECT redlock_acquire('$name_2')");
$second->query("SELECT redlock_acquire('three')");
my $third = session($host_b, dbname => 'utf8');
$third->query('BEGIN');
$third->query("SELECT redlock_acquire('four')");
$third->send("SELECT redlock_acquire('$name_2')");
$second->send("SELECT redlock_acquire('four')");
@results = map { $_->result } $second, $third;
($victim) = grep { $_->{state} eq '40P01' } @results;
like($victim->{detail}, qr/waits for redlock "two $go (?:$e)+"\.\.\.; blocked by/, 'a long name is cut between two letters');
$_->quit foreach $first, $second, $third;

# ---- a session that waits to share a lock ----

{
	my ($reader, $waiter) = map { session($host_b) } 1, 2;
	my $writer = session($host_c);
	my $acquire = "SELECT redlock_acquire('doc', scope => 'session', mode =>";

	$reader->query("$acquire 'shared')");
	$writer->send("$acquire 'exclusive')");
	ok($host_c->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'doc' AND held_by IS NOT NULL"),
		'another host waits for the lock alone');
	is($host_c->safe_psql('postgres', "SELECT num_nonnulls(holder_cluster_name, holder_host, holder_database, holder_role, holder_pid) FROM redlock_locks WHERE resource = 'doc'"),
		'0', 'readers have no columns');
	ok($host_b->poll_query_until('postgres', "SELECT NOT redlock_try('doc', mode => 'shared')"), 'no new reader gets the lock');
	$waiter->send("$acquire 'shared')");
	ok($host_b->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'doc' AND pid = " . $waiter->pid), 'a new reader waits for the writer');
	is($host_b->safe_psql('postgres',
			'SELECT pid, state, token IS NULL, valid_for IS NULL, mode FROM redlock_locks WHERE resource = \'doc\' ORDER BY state'),
		join("\n", $reader->pid . '|held|f|f|shared', $waiter->pid . '|queued|t|t|shared'),
		'the new reader is queued, without a token, beside the holding reader');
	$reader->query("SELECT redlock_release('doc')");
	$writer->result;
	$writer->query("SELECT redlock_release('doc')");
	is($waiter->result->{state}, '', 'it gets the lock in the end');
	is($host_b->safe_psql('postgres', "SELECT pid, state, token IS NULL FROM redlock_locks WHERE resource = 'doc'"),
		$waiter->pid . '|held|f', 'and is shown as its holder then');
	$_->quit foreach $reader, $waiter, $writer;
}

$_->quit foreach $on_utf8, $on_b;
done_testing();
