# Settings of an administrator, right and wrong.
#
# Protects from: a wrong setting keeping the server from starting, or silently from taking locks; a
# vote of an unfit server; a server voting twice; passwords in logs, views and messages; foreign
# texts writing lines of their own into the log, or commands to a terminal; a crash putting changes
# into force without a reload; a reload lost while the broker starts.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $secret = 'S3cr3t/pass';                   # of all nodes with a password
my $secret_in_url = 'S3cr3t%2Fpass';
my @logs;

sub node_state
{
	my ($host, $address) = @_;
	return $host->safe_psql('postgres',
		"SELECT state FROM redlock_nodes WHERE node = '$address'");
}

# Puts nodes into force by a reload of the configuration file, and waits.
my $generation = 0;

sub set_nodes
{
	my ($host, @nodes) = @_;

	$host->append_conf('postgresql.conf',
		"redlock.nodes = '" . node_urls(@nodes) . "'");
	$host->reload;
	$host->poll_query_until('postgres',
		'SELECT count(*) = ' . @nodes . " FROM redlock_nodes WHERE state NOT IN ('resolving', 'connecting')")
	  or die 'the new nodes do not show up';
}

# Waits until the broker refuses this node for this reason.
sub is_refused
{
	my ($host, $address, $reason, $description) = @_;
	my $query =
	  "SELECT state = 'refused' AND last_error ~* '$reason' FROM redlock_nodes WHERE node = '$address'";

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($host->poll_query_until('postgres', $query), $description)
	  or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));
}

# ---- not preloaded, and no nodes ----

my $bare = PostgreSQL::Test::Cluster->new('bare');
$bare->init;
$bare->append_conf('postgresql.conf', 'dynamic_shared_memory_type = mmap');
$bare->start;
push @logs, $bare->logfile;
$bare->safe_psql('postgres', 'CREATE EXTENSION redlock_pg');
foreach my $statement (
	"SELECT redlock_acquire('job')",
	"SELECT redlock_try('job')",
	"CALL redlock_run('job', 'SELECT 1')",
	"SELECT redlock_release('job')",
	'SELECT redlock_release_all()',
	"SELECT redlock_check('job')",
	"SELECT redlock_token('job')",
	"SELECT redlock_fence('job')",
	'TABLE redlock_locks',
	'TABLE redlock_nodes',
	'TABLE redlock_stats')
{
	my $result = psql_result($bare, $statement);
	is($result->{state}, '55000', "not preloaded: $statement is an error");
	is($result->{message}, 'redlock_pg must be loaded via shared_preload_libraries',
		"not preloaded: $statement says why");
	like($result->{hint}, qr/shared_preload_libraries/, "not preloaded: $statement says what to add");
}

$bare->append_conf('postgresql.conf', redlock_conf());
$bare->restart;
foreach my $call ("redlock_acquire('job')", "redlock_try('job')")
{
	my $result = psql_result($bare, "SELECT $call");
	is($result->{state}, '55000', "no nodes: $call is an error");
	is($result->{message}, 'redlock.nodes is not set', "no nodes: $call says why");
	like($result->{hint}, qr/redlock\.nodes/, "no nodes: $call says what to add");
}
is($bare->safe_psql('postgres', 'SELECT count(*) FROM redlock_nodes'), '0', 'no nodes: the view is empty');

# ---- URLs ----

my %wrong = (
	'a scheme of others'        => 'http://h:1',
	'no scheme'                 => 'h:6379',
	'no host'                   => 'redis://:6379',
	'a port that is no number'  => 'redis://h:port',
	'a port out of range'       => 'redis://h:65536',
	'a database that is no number' => 'redis://h:1/x',
	'an unclosed bracket'       => 'redis://[::1:1',
	'a relative socket path'    => 'unix://tmp/redis.sock',
	'the same node twice'       => 'redis://h:1,redis://h:1',
	'the same node in other letters' => 'redis://HOST:1,redis://host:1',
	'the default port twice'    => 'redis://h,redis://h:6379',
	'two databases of one node' => 'redis://h:1/0,redis://h:1/1',
	'TLS on a socket'           => 'rediss:///tmp/redis.sock',
	'a wrong second node'       => 'redis://h:1,redis://h:x',
);
my $s = session($bare);
foreach my $what (sort keys %wrong)
{
	my $result = $s->run("ALTER SYSTEM SET redlock.nodes = '$wrong{$what}'");
	is($result->{state}, '22023', "$what is refused");
	like($result->{message}, qr/^invalid value for parameter "redlock.nodes"/, "$what: the message says so");
}
foreach my $right ('redis://h', 'redis://h:1/2', 'redis://u:p@h:1', 'redis://:p@h:1/', 'redis://[::1]:1',
	'unix:///tmp/redis.sock', 'unix:///tmp/redis.sock?db=3', 'redis://h:1 , redis://h:2', '')
{
	is($s->run("ALTER SYSTEM SET redlock.nodes = '$right'")->{state}, '', "'$right' is accepted");
}
$s->query('ALTER SYSTEM RESET redlock.nodes');

# A wrong list with a password in the configuration file: kept out of the log.
$bare->append_conf('postgresql.conf', "redlock.nodes = 'redis://:$secret_in_url\@h:port'");
$bare->reload;
wait_until(sub { slurp_file($bare->logfile) =~ /invalid value for parameter "redlock.nodes"/ },
	'a wrong list in the configuration file is reported at a reload');
like(psql_result($bare, "SELECT redlock_try('job')")->{message},
	qr/^redlock.nodes is not set/, 'and changes nothing');

# A port without a server, and a host that does not exist.
set_nodes($bare, 'redis://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port(),
	'redis://no-such-host.invalid:1');
my $result = psql_result($bare, "SELECT redlock_try('job')");
is($result->{state}, '08006', 'nodes that do not exist: no quorum');
like($result->{detail}, qr/no-such-host\.invalid:1\b/, 'the host that does not exist is named');
$s->quit;
$bare->stop;

# ---- every way to reach a node ----

my $plain   = redis_node();
my $guarded = redis_node(password => $secret);
my $unix    = redis_node(unix => 1);
my $by_name = redis_node();
my $db3     = redis_node();
my $user    = redis_node(conf => [ '--user', 'carol', 'on', ">$secret", '~*', '&*', '+@all' ]);
my @ways    = (
	$plain,
	$guarded->url(password => $secret_in_url),
	$unix,
	$by_name->url(host => 'localhost'),
	$db3->url(db => 3),
	$user->url(user => 'carol', password => $secret_in_url),
);
my $host = redlock_cluster('host', nodes => \@ways, conf => "redlock.ttl = '60s'");
push @logs, $host->logfile;
$s = session($host);

is( $host->safe_psql('postgres', "SELECT string_agg(node, ' ' ORDER BY node) FROM redlock_nodes"),
	join(' ',
		sort $plain->address, $guarded->address, $unix->socket,
		'localhost:' . $by_name->port, $db3->address . '/3', $user->address),
	'the view names the nodes without credentials');
$s->query("SELECT redlock_acquire('job', scope => 'session')");
wait_until(sub { key_count('redlock:job', $plain, $guarded, $unix, $by_name, $user) == 5 },
	'all of them vote');
wait_until(sub { $db3->cli('-n', '3', 'EXISTS', 'redlock:job') eq '1' },
	'in the database that the URL says');
is($db3->cli('EXISTS', 'redlock:job'), '0', 'and only there');
$s->query("SELECT redlock_release('job')");
wait_until(sub { key_count('redlock:job', $plain, $guarded, $unix, $by_name, $user) == 0 },
	'all of them release', 30);

# ---- servers that must not vote ----

my $master  = redis_node();
my $replica = redis_node(conf => [ '--replicaof', '127.0.0.1 ' . $master->port ]);

# A cluster bus listens on the port plus 10000, which may be taken.
my ($major) = `redis-server --version` =~ /v=(\d+)/;
my @bus     = $major >= 7 ? ('--cluster-port', PostgreSQL::Test::Cluster::get_free_port()) : ();
my $cluster = redis_node(conf => [ '--cluster-enabled', 'yes', @bus ]);

my @good    = ($plain, $by_name, $master);

set_nodes($host, @good, $replica, $cluster);
wait_nodes_ready($host, 3);
is_refused($host, $replica->address, 'replica', 'a replica does not vote');
is_refused($host, $cluster->address, 'cluster', 'a node of a Redis cluster does not vote');
is($s->query("SELECT redlock_try('job')"), 't', 'the others are a quorum');
$master->kill9;
$result = $s->run("SELECT redlock_try('job')");
is($result->{state}, '08006', 'with one of them gone there is none');
like($result->{detail}, qr/\Q@{[$_->address]}\E\b/, 'the detail names ' . $_->address)
  for $master, $replica, $cluster;
unlike($result->{detail}, qr/\Q@{[$_->address]}\E\b/, 'but not ' . $_->address) for $plain, $by_name;
$master->start;

# ---- passwords ----

set_nodes($host, @good, $guarded->url(password => 'wr0ng-secret'), $user->url(user => 'nobody', password => 'wr0ng-secret'));
wait_nodes_ready($host, 3);
is_refused($host, $guarded->address, 'WRONGPASS|invalid', 'a wrong password: no vote');
is_refused($host, $user->address, 'WRONGPASS|invalid', 'an unknown user: no vote');
is($s->query("SELECT redlock_try('job')"), 't', 'the others are a quorum');

set_nodes($host, @good, 'redis://' . $guarded->address, $user);
is_refused($host, $guarded->address, 'NOAUTH|authentication', 'no password where one is wanted: no vote');

set_nodes($host, $plain, $guarded->url(password => 'wr0ng-secret'));
is_refused($host, $guarded->address, 'WRONGPASS|invalid', 'a wrong password');
$result = $s->run("SELECT redlock_try('job')");
is($result->{state}, '08006', 'no quorum for want of a password');
like($result->{detail}, qr/\Q@{[$guarded->address]}\E/, 'the detail names the node');
set_nodes($host, $plain, $guarded->url(password => $secret_in_url));
wait_nodes_ready($host, 2);
is($s->query("SELECT redlock_try('job')"), 't', 'the right password helps, without a restart');

unlike($host->safe_psql('postgres', 'SHOW redlock.nodes'), qr/S3cr3t/, 'SHOW prints no password');
unlike($host->safe_psql('postgres', "SELECT * FROM pg_settings WHERE name LIKE 'redlock.%'"),
	qr/S3cr3t/, 'nor does pg_settings');
unlike($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'), qr/S3cr3t|wr0ng/, 'nor redlock_nodes');
$host->safe_psql('postgres', 'CREATE ROLE somebody LOGIN');
is(psql_result($host, 'SET ROLE somebody; SHOW redlock.nodes')->{state}, '42501', 'and only a superuser may see it');

# ---- the same server under two names ----

set_nodes($host, $plain, $plain->url(host => 'localhost'), $by_name);
ok( $host->poll_query_until('postgres',
		"SELECT count(*) FILTER (WHERE state = 'ready') = 2
		    AND count(*) FILTER (WHERE state = 'refused' AND last_error ~ 'same server') = 1
		   FROM redlock_nodes"),
	'a server that is listed under two names votes once');
is($s->query("SELECT redlock_try('job')"), 't', 'two different servers of three are a quorum');
$by_name->kill9;
is($s->run("SELECT redlock_try('job')")->{state}, '08006', 'one server is none');
$by_name->start;

# ---- a name leads to another server later ----

{
	my $link = PostgreSQL::Test::Utils::tempdir_short() . '/node';
	my ($one, $other) = redis_nodes(2, unix => 1);

	symlink $one->socket, $link or die "$link: $!";
	# the quarantine of the other node is this long: data was lost under the name
	$host->append_conf('postgresql.conf', "redlock.max_ttl = '3s'");
	set_nodes($host, $plain, $one);
	wait_nodes_ready($host, 2);
	set_nodes($host, $plain, $one, "unix://$link");
	ok($host->poll_query_until('postgres', "SELECT count(*) = 1 FROM redlock_nodes WHERE state = 'refused' AND last_error ~ 'same server'"),
		'a server is listed under two names');
	symlink $other->socket, "$link.new" or die "$link.new: $!";
	rename "$link.new", $link or die "$link: $!";
	wait_nodes_ready($host, 3);
	pass('the other server is used, though nothing happened to the one');
	$host->append_conf('postgresql.conf', "redlock.max_ttl = '60s'");
}

# ---- redlock.nodes changes under a lock ----

set_nodes($host, $plain, $by_name, $master);
wait_nodes_ready($host, 3);
$s->query("BEGIN; SELECT redlock_acquire('held', ttl => '2 s')");
set_nodes($host, $plain, $by_name, $master, $unix, $db3);
wait_nodes_ready($host, 5);
is($s->query("SELECT redlock_check('held') > '0'"), 't', 'a lock survives more nodes');
is(psql_result($host, "SELECT redlock_try('held')")->{out}, 'f', 'and still excludes others');
$s->query('COMMIT');
$s->query("SELECT redlock_acquire('job', scope => 'session')");
wait_until(sub { key_count('redlock:job', $plain, $by_name, $master, $unix, $db3) == 5 },
	'the new nodes vote');
$s->query("SELECT redlock_release('job')");
wait_until(sub { key_count('redlock:job', $plain, $by_name, $master, $unix, $db3) == 0 },
	'and release', 30);
set_nodes($host, $plain, $by_name, $master);
wait_nodes_ready($host, 3);

# ---- a lost node is replaced while a session waits ----

# The waiter owes the lost node a release, for longer than the ttl, and still asks the new nodes at
# once.
my $gone = redis_node();
my $log_end = -s $host->logfile;
set_nodes($host, $plain, $by_name, $master, $unix);
wait_nodes_ready($host, 4);
set_nodes($host, $plain, $by_name, $master);
wait_nodes_ready($host, 3);
unlike(slurp_file($host->logfile, $log_end), qr/changed too much at once/, 'one node more, or less, is no danger');
set_nodes($host, $plain, $by_name, $gone);
wait_nodes_ready($host, 3);
wait_until(sub { slurp_file($host->logfile, $log_end) =~ /WARNING:  redlock\.nodes was changed too much at once/ },
	'another node in the place of one of three is, as the log tells');
$_->cli('SET', 'redlock:moved', 'of another', 'PX', 600000) for $plain, $by_name;
$s->send("SELECT redlock_acquire('moved', scope => 'session', wait => '5 min') > 0");
$host->poll_query_until('postgres', "SELECT state = 'waiting' FROM redlock_locks WHERE resource = 'moved'");
$gone->pause;
wait_until(sub { node_state($host, $gone->address) !~ /ready|^$/ }, 'a node does not answer who waits');
$host->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls($plain, $by_name, $master) . "'");
$host->reload;
wait_until(sub { node_state($host, $master->address) eq 'ready' }, 'another takes its place');
$_->cli('DEL', 'redlock:moved') for $plain, $by_name;
wait_until(sub { $s->done }, 'who waits gets the lock from the new nodes', 30);
is($s->result->{out}, 't', 'without an error');
$s->query("SELECT redlock_release('moved')");
$gone->resume;

# ---- a new password, long after a failure ----

my $failed = redis_node();
set_nodes($host, $plain, $by_name, $failed);
wait_nodes_ready($host, 3);
$failed->kill9;
wait_until(sub { node_state($host, $failed->address) eq 'backing off' }, 'a node fails');
$failed->start;
wait_nodes_ready($host, 3);
$failed->cli('CONFIG', 'SET', 'requirepass', 'S3cr3t');
my $before = -s $host->logfile;
$host->append_conf('postgresql.conf',
	"redlock.nodes = '" . join(', ', node_urls($plain, $by_name), $failed->url(password => 'S3cr3t')) . "'");
$host->reload;
wait_until(sub { substr(slurp_file($host->logfile), $before) =~ /redlock node \S+ is ready/ }, 'it gets a password, and is ready again');
unlike(substr(slurp_file($host->logfile), $before), qr/it closed the connection|could not connect/,
	'and the log does not tell of the failure again');
set_nodes($host, $plain, $by_name, $master);
wait_nodes_ready($host, 3);

# ---- foreign texts ----

# The log has statements as sent, so the test's statements have no control characters.
my $control = qr/[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]/;
my $eve     = session($host);
# since version 19 the name of a role has no line end
my $name = $eve->query("SELECT current_setting('server_version_num')::int < 190000") eq 't'
  ? q{E'eve\n\x1b[31m'} : q{E'eve\t\x1b[31m'};
$eve->query("DO \$\$ BEGIN EXECUTE format('CREATE ROLE %I', $name); END \$\$");
$eve->query("SELECT set_config('session_authorization', $name, false)");
$eve->query(q{SELECT redlock_acquire('by eve', scope => 'session')});
wait_until(sub { key_count('redlock:by eve', $plain, $by_name, $master) == 3 }, 'a role with any name takes a lock');
like($by_name->cli('--raw', 'GET', 'redlock:by eve'), qr/^[ -~]* user="eve[ -~]*"\z/,
	'no control character of its name is in the value of the lock');
$eve->quit;

$_->cli('SET', 'redlock:forged', "x\nLOG:  forged \e[31m\xc2\x9b", 'PX', 600000) for $plain, $by_name;
$result = $s->run("SELECT redlock_acquire('forged', wait => '0')");
is($result->{state}, '55P03', 'a key with anything as its value is in the way');
like($result->{detail}, qr/^The lock was granted to: [ -~]*forged[ -~]*\z/, 'no control character of it is in the message');
my $waiter = session($host);
$waiter->send("SELECT redlock_acquire('forged')");
wait_until(
	sub {
		$s->query("SELECT held_by FROM redlock_locks WHERE resource = 'forged' AND state = 'waiting'")
		  =~ /^[ -~]*forged[ -~]*\z/;
	},
	'nor in redlock_locks');
$_->cli('DEL', 'redlock:forged') for $plain, $by_name;
ok($waiter->result->{out} > 0, 'the waiter gets the lock');
$waiter->quit;

# in postgresql.conf, where an escape sequence is written as \033
foreach my $setting ('key_prefix', 'nodes')
{
	my $was = -s $host->logfile;

	$host->append_conf('postgresql.conf', qq{redlock.$setting = 'redis://h\\033[31m\\012LOG:'});
	$host->reload;
	if ($setting eq 'key_prefix')
	{
		wait_until(sub { substr(slurp_file($host->logfile), $was) =~ /invalid value for parameter "redlock.key_prefix"/ },
			'a prefix with control characters is refused');
		$host->append_conf('postgresql.conf', "redlock.key_prefix = 'redlock:'");
	}
	else
	{
		wait_until(sub { substr(slurp_file($host->logfile), $was) =~ /must have printable ASCII characters only/ },
			'a node with control characters is refused');
	}
}
set_nodes($host, $plain, $by_name, $master);
wait_nodes_ready($host, 3);

# ---- other settings ----

$host->append_conf('postgresql.conf', "redlock.key_prefix = 'app:{x} '");
$host->reload;
ok( $host->poll_query_until('postgres', "SELECT setting = 'app:{x} ' FROM pg_settings WHERE name = 'redlock.key_prefix'"),
	'the prefix of keys changes');
wait_until(
	sub {
		$s->query("SELECT redlock_acquire('job', scope => 'session')");
		my $there = key_count('app:{x} job', $plain, $by_name, $master) >= 2;
		$s->query("SELECT redlock_release('job')");
		return $there;
	},
	'and is used');

# The lock table is bounded; 16 is the smallest bound.
my $small = redlock_cluster('small',
	nodes => [ $plain, $by_name, $master ],
	conf  => "redlock.max_locks = 16");
push @logs, $small->logfile;
my $t = session($small);
$t->query("SELECT redlock_acquire('lock ' || i, scope => 'session') FROM generate_series(1, 16) i");
$result = $t->run("SELECT redlock_acquire('one more')");
is($result->{state}, '53400', 'a full table of locks is an error')
  or diag($result->{err});
like("$result->{message} $result->{hint}", qr/redlock\.max_locks/, 'that names the setting');
is($t->query('SELECT redlock_release_all()'), '16', 'the others can be released');
wait_until(sub { $t->run("SELECT redlock_try('one more')")->{out} eq 't' }, 'which makes room');
$t->quit;
$small->stop;

# ---- a hot standby ----

my $primary = redlock_cluster('primary',
	nodes => [ $plain, $by_name, $master ],
	conf  => "redlock.ttl = '60s'",
	init  => { allows_streaming => 1 });
push @logs, $primary->logfile;
$primary->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'copy', has_streaming => 1);
$standby->start;
push @logs, $standby->logfile;
wait_nodes_ready($standby, 3);
my $p  = session($primary);
my $sb = session($standby);
is($sb->query('SELECT pg_is_in_recovery()'), 't', 'there is a hot standby');
$p->query("BEGIN; SELECT redlock_acquire('job')");
is($sb->query("SELECT redlock_try('job')"), 'f', 'the primary excludes the standby');
$p->query('COMMIT');
$sb->query('BEGIN');
wait_until(sub { $sb->query("SELECT redlock_try('job')") eq 't' }, 'the standby takes the lock', 30);
is($p->query("SELECT redlock_try('job')"), 'f', 'and excludes the primary');
$sb->query('COMMIT');
wait_until(sub { $p->query("SELECT redlock_try('job')") eq 't' }, 'it releases it', 30);
$sb->query("SELECT redlock_acquire('job', scope => 'session')");
$standby->promote;
ok($standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()'), 'the standby is promoted');
is($sb->query("SELECT redlock_check('job') > '0'"), 't', 'and keeps its lock');
is($p->query("SELECT redlock_try('job')"), 'f', 'against the old primary');
$_->quit for $p, $sb;

# ---- a crash does not reload ----

$primary->append_conf('postgresql.conf', 'restart_after_crash = on');
$primary->reload;
ok($primary->poll_query_until('postgres', "SELECT setting = 'on' FROM pg_settings WHERE name = 'restart_after_crash'"),
	'the server survives a crash');
$primary->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls($plain, $by_name) . "'");
$p = session($primary);
kill 'KILL', $p->query('SELECT pg_backend_pid()');
ok($primary->poll_query_until('postgres', "SELECT count(*) = 3 FROM redlock_nodes WHERE state = 'ready'"),
	'after a crash the broker has the list of the sessions');
$primary->reload;
ok($primary->poll_query_until('postgres', 'SELECT count(*) = 2 FROM redlock_nodes'), 'and the list of the file after a reload');

# ---- a reload while the broker starts ----

{
	my $library = guest_library('slow_fork') // die 'no slow fork';
	my $file = $primary->data_dir . '/slow_fork';
	# as if PostgreSQL started the process, and the reload came before the process runs
	$primary->append_conf('postgresql.conf', "shared_preload_libraries = 'redlock_pg, $library'\nautovacuum = off");
	$primary->restart;
	wait_nodes_ready($primary, 2);
	append_to_file($file, '');
	kill 'TERM', broker_pid($primary);
	wait_until(sub { -e "${file}ed" }, 'the broker stops, and another begins');
	my $size = -s $primary->logfile;
	$primary->append_conf('postgresql.conf', "redlock.nodes = '" . node_urls($plain, $by_name, $master) . "'");
	$primary->reload;
	wait_until(sub { substr(slurp_file($primary->logfile), $size) =~ /received SIGHUP/ }, 'the files are read');
	unlink $file, "${file}ed";
	ok($primary->poll_query_until('postgres', 'SELECT count(*) = 3 FROM redlock_nodes'),
		'a reload reaches a broker that is not yet running');
}

# ---- after all this ----

$s->quit;
$_->stop foreach $host, $primary, $standby;
foreach my $log (@logs)
{
	my @leaks = grep { /S3cr3t|wr0ng/ } split /\n/, slurp_file($log);
	is(scalar @leaks, 0, 'no password in ' . ($log =~ s/.*\///r)) or diag(join "\n", @leaks);
	@leaks = grep { /$control/ } split /\n/, slurp_file($log);
	is(scalar @leaks, 0, 'and no control character') or diag(explain(\@leaks));
}

done_testing();
