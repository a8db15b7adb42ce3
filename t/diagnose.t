# redlock_diagnose: each fault of an installation in words, provoked on real servers and nodes.
#
# Protects from: a fault without a finding, under another subject, or without a remedy; a finding
# without a fault; an error instead of rows in a broken installation: no preload, no nodes, no
# broker, a stopped broker, no quorum, a standby, objects of another version; a password in a row.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $SUBJECTS = 'preload, extension, settings, broker, lists of nodes, quorum, nodes, eviction, memory, persistence, clocks, rights, '
  . 'versions, hosts, names of hosts, change of nodes, room, new names, grants, privileges';

sub diagnose
{
	my ($host) = @_;
	my ($rc, $out, $err) = $host->psql('postgres',
		"SELECT concat_ws(' | ', severity, subject, finding, remedy) FROM redlock_diagnose()");

	return $rc == 0 ? $out : "failed: $err";
}

# Waits until a row matches the pattern.
sub finds
{
	my ($host, $row, $what) = @_;
	my $rows;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_until(sub { $rows = diagnose($host); $rows =~ /^$row$/m }, $what) || diag("no row like $row in\n$rows");
}

# Waits until no row has a fault.
sub is_healthy
{
	my ($host, $what) = @_;
	my $rows;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { $rows = diagnose($host); $rows =~ /^ok/ && $rows !~ /^(?!ok)/m }, $what) or diag($rows);
	return $rows;
}

sub subjects
{
	my ($rows) = @_;
	return join ', ', map { (split / \| /)[1] } split /\n/, $rows;
}

sub set
{
	my ($host, @lines) = @_;

	$host->append_conf('postgresql.conf', join "\n", @lines);
	$host->reload;
	return;
}

sub set_nodes
{
	my ($host, @nodes) = @_;

	set($host, "redlock.nodes = '" . node_urls(@nodes) . "'");
	return;
}

# ---- not preloaded, and objects of another version ----

my $bare = PostgreSQL::Test::Cluster->new('bare');
$bare->init;
$bare->append_conf('postgresql.conf', 'dynamic_shared_memory_type = mmap');
$bare->start;
$bare->safe_psql('postgres', 'CREATE EXTENSION redlock_pg');
my $version = $bare->safe_psql('postgres', "SELECT extversion FROM pg_extension WHERE extname = 'redlock_pg'");
like(diagnose($bare), qr/^error \| preload \| The library is not preloaded, .* \| Add redlock_pg to shared_preload_libraries .*\nok \| extension \| .*\.\nok \| privileges \| .*\.$/,
	'without a preload three subjects are checked');
foreach ([ '0.1.0', 'Run ALTER EXTENSION redlock_pg UPDATE' ], [ '99.0.0', 'Restart the server' ])
{
	my ($other, $remedy) = @$_;

	$bare->safe_psql('postgres', "SET allow_system_table_mods = on; UPDATE pg_extension SET extversion = '$other' WHERE extname = 'redlock_pg'");
	like(diagnose($bare), qr/^warning \| extension \| .* the version \Q$other\E, and the library has the version \Q$version\E\. \| $remedy/m, "objects of version $other");
}
$bare->safe_psql('postgres', "SET allow_system_table_mods = on; UPDATE pg_extension SET extversion = '$version' WHERE extname = 'redlock_pg'");

# ---- no nodes, no broker, and the node inside the server ----

$bare->append_conf('postgresql.conf', redlock_conf());
$bare->restart;
finds($bare, 'error \| lists of nodes \| redlock\.nodes is not set\. \| Add a line to postgresql\.conf .*', 'no nodes');
$bare->append_conf('postgresql.conf', 'max_worker_processes = 0');
$bare->restart;
finds($bare, 'error \| broker \| No broker runs, .* \| .* max_worker_processes, now 0, is enough\.', 'no broker');
$bare->append_conf('postgresql.conf', "max_worker_processes = 8\nredlock.nodes = 'local'");
$bare->restart;
wait_nodes_ready($bare, 1);
my $rows = is_healthy($bare, 'the node inside the server');
like($rows, qr/^ok \| lists of nodes \| redlock\.nodes is local: locks exclude sessions of this server only\.$/m, 'and its limit');
$bare->stop;

# ---- a healthy host, and its nodes ----

my @nodes = redis_nodes(3);
my $host = redlock_cluster('alpha',
	nodes => \@nodes,
	conf  => "redlock.max_ttl = '2s'\nredlock.ttl = '2s'\nredlock.max_locks = 20",
	init  => { allows_streaming => 1 });
$rows = is_healthy($host, 'a healthy host');
is(subjects($rows), $SUBJECTS, 'a row for each subject');
like($rows, qr/^ok \| versions \| \Q@{[$nodes[0]->address]}\E: (Redis|Valkey) \d+\.\d+\.\d+, .*\.$/m, 'the versions of the nodes');
like($rows, qr/^ok \| quorum \| Votes for new locks come from 3 of 3 nodes of redlock\.nodes; a quorum is 2\.$/m, 'the quorum');
$host->safe_psql('postgres', 'CREATE ROLE anybody');
is($host->safe_psql('postgres', 'SET ROLE anybody; SELECT count(*) FROM redlock_diagnose()'), scalar(my @all = split /, /, $SUBJECTS), 'any role may ask');

# the owner of a table needs the schema
$host->safe_psql('postgres', <<'SQL');
CREATE ROLE keeper;
ALTER TABLE redlock_runs OWNER TO keeper;
REVOKE USAGE ON SCHEMA public FROM PUBLIC;
SQL
like(diagnose($host), qr/^error \| privileges \| The owner of the table redlock_runs, keeper, lacks USAGE on the schema public: .* \| Run GRANT USAGE ON SCHEMA public TO keeper\.$/m,
	'an owner without the schema');
$host->safe_psql('postgres', 'GRANT USAGE ON SCHEMA public TO keeper');
unlike(diagnose($host), qr/^error \| privileges/m, 'an owner with the schema');
$host->safe_psql('postgres', <<'SQL');
GRANT USAGE ON SCHEMA public TO PUBLIC;
REVOKE USAGE ON SCHEMA public FROM keeper;
ALTER TABLE redlock_runs OWNER TO CURRENT_USER;
DROP ROLE keeper;
SQL

# privileges on the tables
$host->safe_psql('postgres', <<'SQL');
CREATE ROLE "any one";
CREATE ROLE chief SUPERUSER;
GRANT ALL ON ALL TABLES IN SCHEMA public TO "any one", chief;
GRANT UPDATE (token) ON redlock_fences TO anybody;
GRANT TRIGGER ON redlock_grants TO PUBLIC;
SQL
$rows = diagnose($host);
is(scalar(() = $rows =~ /^warning \| privileges/mg), 4, 'a row for each table that others may write');
foreach ([ redlock_fences => '"any one", anybody' ], [ redlock_shared_fences => '"any one"' ], [ redlock_grants => 'PUBLIC, "any one"' ], [ redlock_runs => '"any one"' ])
{
	my ($table, $roles) = @$_;

	like($rows, qr/^warning \| privileges \| Roles have more privileges on the table $table than SELECT: $roles\. With TRIGGER, .* \| Run REVOKE ALL ON $table FROM $roles CASCADE, then GRANT SELECT ON $table TO PUBLIC\. /m,
		"the roles that may write $table");
}
$host->safe_psql('postgres', "$1; $2") while $rows =~ /\| Run (REVOKE .*), then (GRANT .*?)\. /g;
is_healthy($host, 'after the remedies');
is($host->safe_psql('postgres', 'SET ROLE anybody; SELECT count(*) FROM redlock_grants'), '0', 'all roles may still read');

# settings
like($host->safe_psql('postgres', "SET redlock.ttl = '3s'; SELECT finding FROM redlock_diagnose() WHERE subject = 'settings' AND severity = 'error'"),
	qr/^redlock\.ttl, 3000 ms, is longer than redlock\.max_ttl, 2000 ms/, 'a ttl that no call can have');
set($host, "redlock.on_disagreement = 'warn'");
finds($host, 'warning \| settings \| redlock\.on_disagreement is warn: .* \| .* set redlock\.on_disagreement to refuse\.', 'locks in spite of conflicts');
set($host, "redlock.on_disagreement = 'refuse'");

# a standby
$host->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($host, 'copy', has_streaming => 1);
$standby->start;
wait_nodes_ready($standby, 3);
is($standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 't', 'a standby');
is_healthy($standby, 'is diagnosed in recovery');

# ---- other hosts ----

finds($host, 'ok \| hosts \| Hosts at the nodes: 2\. Those with this key prefix have the same settings\.', 'both hosts');
foreach my $prefix ('other:', 'redlock:')
{
	$standby->append_conf('postgresql.conf', "redlock.key_prefix = '$prefix'");
	$standby->reload;
	finds($host, 'ok \| hosts \| Hosts at the nodes: 2\. .*' . ($prefix eq 'other:' ? ' With another redlock\.key_prefix: 1; .*' : 'settings\.'),
		"a host with the prefix $prefix");
}
{
	local $standby->{_name} = 'alpha';    # becomes the server's cluster_name
	$standby->stop;
	$standby->start;
}
finds($_, 'warning \| names of hosts \| Several hosts are called "alpha", .* \| Set a different cluster_name .*', 'one name twice on ' . $_->name) foreach $host, $standby;
$standby->append_conf('postgresql.conf', "redlock.max_ttl = '3s'");
$standby->stop;
$standby->start;
finds($standby, 'error \| hosts \| Host "alpha" has other settings than this host, so this host takes no locks\. .*redlock\.max_ttl is 2000 ms at that host, .* \| Set the same redlock\.max_ttl .*',
	'the host with other settings takes no locks');
finds($host, 'warning \| hosts \| Host "standby" has other settings than this host, and takes no locks\. redlock\.max_ttl is 3000 ms at that host, .* \| Set the same redlock\.max_ttl .*',
	'on the other host a warning');
set($standby, "redlock.on_disagreement = 'warn'");
finds($host, 'error \| hosts \| Host "standby" has other settings than this host, and both could get one lock\. .* \| .*', 'with two hosts that take locks an error');
$standby->stop;
$host->restart;    # a restart ends the conflict on this host
wait_nodes_ready($host, 3);

# ---- the lists ----

set_nodes($host, $nodes[0]);
finds($host, 'warning \| lists of nodes \| redlock\.nodes names one node: .* \| Name three or five .*', 'one node');
set_nodes($host, @nodes[ 0, 1 ]);
finds($host, 'warning \| lists of nodes \| redlock\.nodes names 2 nodes: 0 may fail, as with 1\. \| Name three or five .*', 'two nodes');
set_nodes($host, @nodes, 'redis://127.0.0.1:1');
finds($host, 'warning \| lists of nodes \| redlock\.nodes names 4 nodes: 1 may fail, as with 3\. \| .*', 'four nodes');
set_nodes($host, @nodes, map { "redis://127.0.0.1:$_" } 1 .. 10);
set($host, "redlock.nodes_next = '" . join(',', map { "redis://127.0.0.1:$_" } 11 .. 20) . "'");
finds($host, 'warning \| lists of nodes \| Other lists of nodes are in force than .* \| .* see the server log for the reason\. If nodes of a list in force are lost for good, .*', 'lists that are too long together');
set($host, "redlock.nodes_next = ''");
set_nodes($host, @nodes);
is_healthy($host, 'three nodes');

# ---- nodes that do not vote ----

my ($first, $second, $third) = map { quotemeta $_->address } @nodes;

my $guarded = redis_node(password => 'S3cr3t');
my $replica = redis_node(conf => [ '--replicaof', '127.0.0.1 ' . $nodes[0]->port ]);
my $young = redis_node(persist => 0);
my ($wrong, $not_master, $forgets) = map { quotemeta $_->address } $guarded, $replica, $young;
set_nodes($host, @nodes, $guarded->url(password => 'wr0ng'), $replica);
finds($host, "warning \\| nodes \\| Node $wrong does not vote for new locks\\. State: refused, since .*\\. Reason: WRONGPASS .* \\| Correct the user and password .*", 'a wrong password');
finds($host, "warning \\| nodes \\| Node $not_master does not vote for new locks\\. State: refused, .* it is a replica; .* \\| Name an independent server .*", 'a replica');
unlike(diagnose($host), qr/S3cr3t|wr0ng/, 'no password in a row');
$_->kill9 foreach $guarded, $replica;

my $twin = $nodes[0]->url(host => 'localhost');
set_nodes($host, @nodes, $twin, $young->url);
finds($host, "warning \\| nodes \\| Node \\S+ does not vote .* Reason: it is the same server as node .* \\| List each server once .*", 'one server twice');

# ---- persistence ----

my $pause = 'may forget locks in a restart, and then gives no vote for redlock\.max_ttl';
finds($host, "warning \\| persistence \\| Node $forgets $pause: its appendonly is no\\. \\| Set appendonly to yes, .*", 'a node that forgets');
set_nodes($host, @nodes, $young->url . '?durable=yes');
finds($host, "warning \\| persistence \\| Node $forgets is not durable, although redlock\\.nodes says so: its appendonly is no\\. \\| Change this setting .*", 'a node praised too much');
set_nodes($host, @nodes, $young->url . '?durable=no');
finds($host, 'ok \| persistence \| Nodes that keep locks over a restart: 3 of 4\.', 'a known fault is no fault');
$young->restart;
finds($host, "warning \\| nodes \\| Node $forgets does not vote .* State: quarantined, .* it restarted at .* \\(in quarantine for another \\d s\\)\\. \\| Wait until the quarantine is over\\. .*", 'a quarantine');
$young->kill9;
set_nodes($host, @nodes);
is_healthy($host, 'without these nodes');
$nodes[0]->cli(qw(ACL SETUSER default -config));
$nodes[0]->cli(qw(CLIENT KILL TYPE normal));
finds($host, "warning \\| persistence \\| Node $first $pause: it does not answer CONFIG GET\\. \\| Grant the user .*", 'a node that hides its settings');

# ---- rights ----

$nodes[0]->cli(qw(ACL SETUSER default +config -hgetall -zadd -subscribe -publish -pubsub|numsub -scan -type -hscan));
$nodes[0]->cli(qw(CLIENT KILL TYPE pubsub));
$nodes[0]->cli(qw(CLIENT KILL TYPE normal));
finds($host, "warning \\| rights \\| The user of node $first lacks rights for shared locks and permits\\. \\| Grant the user in the URL \\+hgetall\\.", 'rights for some locks');
finds($host, "warning \\| rights \\| The user of node $first lacks rights for the list of hosts\\. \\| Grant the user in the URL \\+zadd\\.", 'rights for the list of hosts');
finds($host, "warning \\| rights \\| The user of node $first lacks rights for messages to other hosts\\. \\| Grant the user in the URL \\+publish \\+pubsub\\|numsub\\.", 'rights to publish');
finds($host, "warning \\| rights \\| The user of node $first lacks rights for redlock_holders, .* \\| Grant the user in the URL \\+scan \\+type \\+hscan\\.", 'rights for looks');
finds($host, "warning \\| rights \\| Node $first does not let this host subscribe: .* \\| If the user .*", 'rights for messages');
$nodes[0]->cli(qw(ACL SETUSER default +hgetall +zadd +subscribe +publish +pubsub +scan +type +hscan));
$nodes[0]->cli(qw(CLIENT KILL TYPE normal));
is_healthy($host, 'with all rights');

# ---- memory ----

my ($used) = $nodes[0]->cli(qw(INFO memory)) =~ /used_memory:(\d+)/;
$nodes[0]->cli(qw(CONFIG SET maxmemory-policy noeviction maxmemory), int($used * 1.1));
finds($host, "warning \\| memory \\| Node $first has little memory left: it uses \\d+ of \\d+ bytes, \\d+ %\\. \\| Raise maxmemory .*", 'a node that is nearly full');
$nodes[0]->cli(qw(CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru));
finds($host, "warning \\| eviction \\| Node $first does not vote .* its maxmemory-policy, allkeys-lru, may throw away leases \\(in quarantine until that is changed\\)\\. \\| Set maxmemory-policy to noeviction .*",
	'a node that evicts keys');
unlike(diagnose($host), qr/\| nodes \| Node $first/, 'and is named once');
$nodes[0]->cli(qw(CONFIG SET maxmemory 0 maxmemory-policy noeviction));
is_healthy($host, 'after the quarantine');

# an error of a node that votes
$nodes[0]->cli(qw(CONFIG SET maxmemory 1));
$host->safe_psql('postgres', "SELECT redlock_try('new name')");
finds($host, "warning \\| nodes \\| Node $first votes, but answered with an error at .*: OOM .*\\. \\| Raise maxmemory .*", 'an error of a ready node');
$nodes[0]->cli(qw(CONFIG SET maxmemory 0));

# ---- versions ----

SKIP:
{
	my ($major) = $nodes[1]->cli(qw(INFO server)) =~ /redis_version:(\d)/;
	skip 'the nodes are no Redis', 1 if $nodes[1]->cli(qw(INFO server)) =~ /valkey_version/;
	my $old = HostileNode->new($nodes[1]);

	$old->obey([ '^INFO server', 'edit', "redis_version:$major", 'redis_version:4' ]);
	set_nodes($host, @nodes[ 0, 2 ], $old);
	finds($host, 'warning \| versions \| Node \S+ runs Redis 4\.\S+\. \| Upgrade the node .*', 'an old version');
}

# ---- clocks ----

SKIP:
{
	my $library = preload('wrong_clock') or skip 'no C compiler', 4;
	my $clock = PostgreSQL::Test::Utils::tempdir() . '/offset';
	my $node;

	write_mapped($clock, -5);
	{
		local $ENV{LD_PRELOAD} = $library;
		local $ENV{WRONG_CLOCK_FILE} = $clock;
		$node = redis_node();
	}
	my $address = quotemeta $node->address;
	set_nodes($host, @nodes[ 0, 2 ], $node);
	finds($host, "warning \\| clocks \\| The clock of node $address is [45]\\.\\d s behind the clock of this host\\. \\| Correct the clock that is wrong\\. .*", 'a clock that is behind');
	write_mapped($clock, -4);
	finds($host, "error \\| clocks \\| The clock of node $address lately ran (9|10)\\.\\d% faster than the clock of this host; leases allow 1%\\. \\| Let the time service .*", 'a clock that is slewed too fast');
	like(slurp_file($host->logfile), qr/WARNING:  the clock of redlock node $address ran (9|10)\.\d% faster than the clock of this host/, 'the log tells it');
	write_mapped($clock, -4000);
	finds($host, "error \\| clocks \\| The clock of node $address is (3999|4000)\\.\\d s behind the clock of this host, so the node refuses this host\\. \\| Correct .*", 'and far behind');
	set_nodes($host, @nodes);
	$node->kill9;
}

# ---- no quorum ----

set_nodes($host, @nodes);
wait_nodes_ready($host, 3);
$nodes[1]->kill9;
finds($host, "warning \\| nodes \\| Node $second does not vote .* State: backing off, .* could not connect: .* \\| Start the node, .*", 'a node that is down');
my $away = "FROM redlock_nodes WHERE node = '" . $nodes[1]->address . "'";
my ($since, $tried) = split /\|/, $host->safe_psql('postgres', "SELECT since, last_error_at $away");
wait_until(sub { $host->safe_psql('postgres', "SELECT last_error_at > '$tried' $away") eq 't' }, 'the broker tries again');
is($host->safe_psql('postgres', "SELECT since $away"), $since, 'and the view shows the time of the first failure');
unlike(diagnose($host), qr/^error/m, 'is no error, since there is a quorum');
$nodes[2]->kill9;
finds($host, 'error \| quorum \| Votes for new locks come from 1 of 3 nodes of redlock\.nodes; a quorum is 2\. \| Bring back the nodes .*', 'two nodes down');
$_->start foreach @nodes[ 1, 2 ];
wait_nodes_ready($host, 3);

# ---- room, and new names ----

my $s = session($host);
$s->query("SELECT redlock_acquire('held $_', scope => 'session')") foreach 1 .. 16;
finds($host, 'warning \| room \| 16 of 20 places for locks of this server are taken\. \| Raise redlock\.max_locks, now 20, .*', 'little room');
$s->query("SELECT redlock_acquire('held $_', scope => 'session')") foreach 17 .. 20;
finds($host, 'error \| room \| 20 of 20 places for locks of this server are taken\. \| Raise redlock\.max_locks, now 20, .*', 'no room');
$s->query('SELECT redlock_release_all()');
$s->query('SET redlock.max_new_names_per_hour = 0; SET SESSION AUTHORIZATION anybody');
is($s->run("SELECT redlock_try('one more')")->{state}, '53400', 'a role gets no new name');
finds($host, 'warning \| new names \| Role "anybody" was refused new names of locks within the last hour, after 0 new names\. \| Use fewer different names, .*', 'a refused role');
$s->quit;

# ---- a stopped broker ----

my $broker = broker_pid($host);
kill 'STOP', $broker;
finds($host, "error \\| broker \\| The broker has not answered within 2000 ms\\. .* \\| .* process $broker\\.", 'a stopped broker');
kill 'CONT', $broker;
$host->stop;

# ---- a change of nodes without an end ----

SKIP:
{
	my $library = preload('wrong_clock') or skip 'no C compiler', 3;
	my $clock = PostgreSQL::Test::Utils::tempdir() . '/host_offset';
	my @next = redis_nodes(3);

	write_mapped($clock, 0);
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{WRONG_CLOCK_FILE} = $clock;
	my $changing = redlock_cluster('changing', nodes => \@nodes);
	$next[2]->kill9;
	set($changing, "redlock.nodes_next = '" . node_urls(@next) . "'");
	finds($changing, 'ok \| change of nodes \| A change of nodes is under way: of redlock\.nodes_next, 2 of 3 nodes are ready; .*', 'a change under way');
	$next[2]->start;
	finds($changing, 'ok \| change of nodes \| A change of nodes is under way, and is complete on this host\.', 'a complete change');
	write_mapped($clock, 3700);
	finds($changing, 'warning \| change of nodes \| redlock\.nodes_next is still set: .* \| Wait until redlock_hosts\.settled .*', 'a change that is complete for long');
	$changing->stop;
}

done_testing();
