
=pod

=head1 NAME

RedlockTest - Redis nodes, PostgreSQL clusters and sessions for redlock_pg's tests

=head1 SYNOPSIS

  use RedlockTest;

  my @nodes = redis_nodes(5);
  my $a     = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '2s'");
  my $s     = session($a);

  is($s->query("SELECT redlock_try('job')"), 't');
  my $r = $s->run("SELECT redlock_acquire('other', wait => '100 ms')");
  is($r->{state}, '55P03');

  $s->send("SELECT redlock_acquire('third')");    # don't wait for the result
  $nodes[0]->pause;
  $r = $s->result;

  wait_until(sub { key_count('redlock:job', @nodes) == 0 }, 'key is gone');

Each server listens on the loopback interface or a Unix socket, and is killed at the
end of the test, also after a failure.

=cut

package RedlockTest;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use File::Basename qw(basename);
use List::Util qw(max min);
use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  redis_node redis_nodes node_urls set_node_lists key_count key_owner
  redlock_cluster redlock_conf restart_with wait_nodes_ready wait_quarantined last_beat wait_beats
  host_id listener each_in_turn write_hosts
  session psql_result repeat end_repeats disturb_work broker_pid broker_sleeps replace_broker
  wait_until sql_examples guest_library preload write_mapped tls_is_missing
);

=pod

=head1 FUNCTIONS

=over

=item preload(name)

Builds B<test/hostile/name.c>.  Returns the value of LD_PRELOAD for servers with this
library and the present libraries; undef if there is no C compiler.

=cut

sub preload
{
	my ($name)  = @_;
	my $library = _library("test/hostile/$name.c") // return;

	return join ' ', $library, $ENV{LD_PRELOAD} // ();
}

sub _library
{
	my ($source) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir() . '/' . basename($source, '.c') . '.so';
	my $cc = $ENV{CC} // 'cc';

	return system("$cc -shared -fPIC -I`pg_config --includedir-server` -o $library $source -ldl -lpthread") == 0 ? $library : undef;
}

=pod

=item guest_library(name)

Builds B<test/guest/name.c>, and returns the library, for LOAD.  Returns undef if there is no C
compiler.

=cut

sub guest_library
{
	my ($name) = @_;
	return _library("test/guest/$name.c");
}

=pod

=item write_mapped(file, numbers)

Writes C longs for a preloaded library, in place: the library maps the file.  The first
number is written last: it tells the library that the other numbers are there.

=cut

sub write_mapped
{
	my ($path, @numbers) = @_;
	my $size = length pack('l!', 0);

	open my $file, -e $path ? '+<' : '+>', $path or die "$path: $!";
	foreach my $i (reverse 0 .. $#numbers)
	{
		sysseek $file, $i * $size, 0;
		syswrite $file, pack('l!', $numbers[$i]);
	}
	close $file;
	return;
}

=pod

=item tls_is_missing()

The reason why TLS can't be tested here; undef if TLS can be tested.

=cut

sub tls_is_missing
{
	chomp(my $directory = qx(pg_config --pkglibdir));
	my $library = slurp_file("$directory/redlock_pg.so");

	return 'this build has no TLS' if $library !~ /redisInitiateSSL/;
	return 'no openssl command here' if system('openssl version >/dev/null 2>&1') != 0;
	return undef;
}

=pod

=item wait_until(condition, description, seconds)

Waits until the condition, a sub, returns true, and reports a passed test; or a failed
test after B<seconds> (by default PG_TEST_TIMEOUT_DEFAULT).  Looks 50 times a second, or
less often if a look takes long: many looks start processes, and tests run side by side.

A test that waits for the deletion of a key uses a ttl above the waiting time, so the
expiry of the key can't pass for the deletion.

=cut

sub wait_until
{
	my ($condition, $description, $seconds) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return _wait($condition, $seconds) ? pass($description) : fail("$description (timed out)");
}

# Returns false if the condition stays false.
sub _wait
{
	my ($condition, $seconds) = @_;
	my $began  = time;
	my $looked = $began; # when the last look began

	$seconds //= $PostgreSQL::Test::Utils::timeout_default;
	while (!$condition->())
	{
		my $now = time;

		return 0 if $now - $began > $seconds;
		sleep max(0.02, min(4 * ($now - $looked), 0.5));
		$looked = time;
	}
	return 1;
}

=pod

=item redis_node(options), redis_nodes(number, options)

Start Redis servers; see RedlockTest::Redis.

=cut

sub redis_node
{
	return RedlockTest::Redis->new(@_);
}

sub redis_nodes
{
	my ($number, @options) = @_;
	return map { RedlockTest::Redis->new(@options) } 1 .. $number;
}

=pod

=item node_urls(nodes)

The value of redlock.nodes for the nodes, each a node or a URL.

=cut

sub node_urls
{
	return join(',', map { ref $_ ? $_->url : $_ } @_);
}

=pod

=item set_node_lists(cluster, nodes, next)

Sets redlock.nodes and redlock.nodes_next, and reloads.

=cut

sub set_node_lists
{
	my ($cluster, $nodes, $next) = @_;

	$cluster->append_conf('postgresql.conf',
		"redlock.nodes = '" . node_urls(@$nodes) . "'\nredlock.nodes_next = '" . node_urls(@$next) . "'\n");
	$cluster->reload;
	return;
}

=pod

=item key_count(key, nodes)

The number of running nodes with the key.

=cut

sub key_count
{
	my ($key, @nodes) = @_;
	return scalar grep { $_->answers && $_->cli('EXISTS', $key) eq '1' } @nodes;
}

=pod

=item key_owner(key, nodes)

The secret of the key's holder, from the nodes with the key; several secrets, separated
by blanks, if nodes name several holders.

=cut

sub key_owner
{
	my ($key, @nodes) = @_;
	my %owners = map { substr($_, 0, 32) => 1 } grep { $_ ne '' } map { $_->cli('GET', $key) } @nodes;

	return join ' ', keys %owners;
}

=pod

=item redlock_conf(options)

Text for postgresql.conf: B<nodes> (array of nodes or URLs) and B<conf> (text).

=cut

sub redlock_conf
{
	my (%options) = @_;
	my $conf = "shared_preload_libraries = 'redlock_pg'\n";

	$conf .= "redlock.nodes = '" . node_urls(@{ $options{nodes} }) . "'\n"
	  if $options{nodes};
	$conf .= "$options{conf}\n" if defined $options{conf};
	return $conf;
}

=pod

=item redlock_cluster(name, options)

Creates and starts a PostgreSQL::Test::Cluster with the extension, and waits
until its broker is ready with all nodes.  Options: those of redlock_conf;
B<ready> is the number of nodes to wait for; B<init> are parameters for the
cluster's init.

=cut

sub redlock_cluster
{
	my ($name, %options) = @_;
	my $cluster = bless PostgreSQL::Test::Cluster->new($name), 'RedlockTest::Cluster';

	$cluster->init(%{ $options{init} // {} });
	# dynamic shared memory in the data directory: a killed server leaves no segment
	$cluster->append_conf('postgresql.conf',
		"dynamic_shared_memory_type = mmap\nmax_prepared_transactions = 5\n");
	$cluster->append_conf('postgresql.conf', redlock_conf(%options));
	$cluster->start;
	$cluster->safe_psql('postgres', 'CREATE EXTENSION redlock_pg');
	wait_nodes_ready($cluster, $options{ready} // scalar @{ $options{nodes} // [] });
	return $cluster;
}

=pod

=item restart_with(cluster, options)

Restarts the cluster with other nodes or settings, and waits until its broker is ready
with all nodes.  Options: those of redlock_conf.

=cut

sub restart_with
{
	my ($cluster, %options) = @_;

	$cluster->append_conf('postgresql.conf', redlock_conf(%options));
	$cluster->restart;
	wait_nodes_ready($cluster, scalar @{ $options{nodes} });
	return;
}

=pod

=item wait_nodes_ready(cluster, number)

Waits until the number of nodes is ready for the cluster's broker.

=cut

sub wait_nodes_ready
{
	my ($cluster, $number) = @_;

	return 1
	  if $cluster->poll_query_until('postgres',
		"SELECT count(*) = $number FROM redlock_nodes WHERE state = 'ready'");
	diag($cluster->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));
	croak "$number nodes are not ready";
}

=pod

=item host_id(cluster)

The id by which other hosts know this host.

=cut

sub host_id
{
	my ($cluster) = @_;
	my $sql = 'SELECT host_id FROM redlock_hosts WHERE self';

	$cluster->poll_query_until('postgres', "SELECT EXISTS ($sql)");
	return $cluster->safe_psql('postgres', $sql);
}

=pod

=item listener(node, patterns)

Receives the messages published at a node, on channels that match the patterns; see
RedlockTest::Listener.

=cut

sub listener
{
	return RedlockTest::Listener->new(@_);
}

=pod

=item each_in_turn(sql, sessions)

The sessions wait for locks.  Each session gets its lock, in any order, as the next
session may come late, and releases the lock by the SQL.

=cut

sub each_in_turn
{
	my ($sql, @sessions) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	while (@sessions)
	{
		my $first;

		wait_until(sub { ($first) = grep { $_->done } @sessions }, 'one of them goes on') or return;
		is($first->result->{state}, '', 'with what it waited for');
		$first->query($sql);
		@sessions = grep { $_ != $first } @sessions;
	}
	return;
}

=pod

=item last_beat(host_id, node)

The time of the host's last beat at the node; empty: none.

=cut

sub last_beat
{
	my ($host_id, $node) = @_;
	return $node->cli('EVAL', q{return redis.call('ZSCORE', 'redlock:\0hosts', ARGV[1]) or ''}, 0, $host_id);
}

=pod

=item write_hosts(node, options)

Writes entries of 17 made-up hosts at the node: one host more than a node tells.  Each host has
addresses of its own for its nodes.  Options: C<standing>, C<max_ttl> in ms, and C<nodes>, for each
node of a host C<[ lists, process ]>, as in an entry (src/protocol/hosts.h).

=cut

sub write_hosts
{
	my ($node, %options) = @_;

	return $node->cli('EVAL', <<'LUA', 0, $options{max_ttl}, $options{standing}, map { @$_ } @{ $options{nodes} });
local H = 'redlock:\0hosts'
local refuses = ARGV[2] == '2'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, 17 do
	local id = string.format('%016x', i)
	local words = {'redlock:', ARGV[1], string.format('%d', (#ARGV - 2) / 2)}
	for j = 3, #ARGV, 2 do
		for _, word in ipairs({ARGV[j], '0', 'host' .. i .. ':' .. j, ARGV[j + 1]}) do words[#words + 1] = word end
	end
	local text = table.concat(words, '\0') .. '\0' .. ARGV[2] .. '\0000\0'
	local config = redis.sha1hex(text)
	redis.call('SET', H .. '\0config:' .. config, text)
	redis.call('ZADD', H, now, id)
	redis.call('ZADD', H .. '\0ids', 0, id)
	redis.call('HSET', H .. '\0facts', id, config .. 'host' .. i .. '\0000.2.0\00015\0000\0001\000100\0000\0')
	redis.call('ZADD', H .. '\0configs:redlock:', refuses and now - 45000 or now, config)
	redis.call('ZADD', H .. '\0users:' .. config, now, id)
end
LUA
}

=pod

=item wait_beats(host_id, node)

Waits for two beats of the host at the node.

=cut

sub wait_beats
{
	my ($host_id, $node) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $time (1 .. 2)
	{
		my $before = last_beat($host_id, $node);
		wait_until(sub { last_beat($host_id, $node) ne $before }, 'a beat');
	}
	return;
}

=pod

=item wait_quarantined(cluster, reason, nodes)

Waits until the cluster's broker has the nodes in quarantine, for a matching reason.

=cut

sub wait_quarantined
{
	my ($host, $reason, @nodes) = @_;
	my $list = join ', ', map { "'" . $_->address . "'" } @nodes;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$host->safe_psql('postgres',
				"SELECT count(*) FROM redlock_nodes WHERE node IN ($list)"
				  . " AND state = 'quarantined' AND quarantine ~ '$reason' AND last_error ~ '$reason'") == @nodes;
		},
		@nodes . ' nodes are in quarantine on ' . $host->name, 10)
	  or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));
}

=pod

=item session(cluster, options)

Opens a session; see RedlockTest::Session.

=item psql_result(cluster, sql)

Runs SQL in a session of its own; returns a result as B<run> of a session.

=cut

sub session
{
	my ($cluster, %options) = @_;
	return RedlockTest::Session->new($cluster, %options);
}

sub psql_result
{
	my ($cluster, $sql) = @_;
	my $session = session($cluster);
	my $result  = $session->run($sql);

	$session->quit;
	return $result;
}

=pod

=item repeat(session, statements)

=item end_repeats(cluster)

The session executes the PL/pgSQL statements again and again, with a commit after each
time, until a call of end_repeats for its server.

=cut

sub repeat
{
	my ($session, $statements) = @_;

	$session->send(<<SQL);
DO \$\$
BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_tables WHERE tablename = 'end_repeats') LOOP
		$statements;
		COMMIT;
	END LOOP;
END
\$\$
SQL
	return;
}

sub end_repeats
{
	my ($cluster) = @_;

	$cluster->safe_psql('postgres', 'CREATE TABLE end_repeats ()');
	return;
}

=pod

=item disturb_work(commits, clusters)

Four sessions on each cluster C<CALL work()>, while some sessions are cancelled and some
terminated, until the sequences C<done> of all clusters reach B<commits>; a row in C<stop>
then ends the work.  Returns a hash: B<done>, B<failed> (the sequences' sums),
B<cancelled>, B<terminated>.

=cut

sub disturb_work
{
	my ($commits, @clusters) = @_;
	my %count = (cancelled => 0, terminated => 0);
	my $total = sub {
		my ($sequence) = @_;
		my $sum = 0;

		$sum += $_->safe_psql('postgres', "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM $sequence") foreach @clusters;
		return $sum;
	};
	my @workers = map { { host => $_ } } (@clusters) x 4;

	while ($total->('done') < $commits)
	{
		foreach my $worker (@workers)
		{
			next if $worker->{session} and not $worker->{session}->done;
			$worker->{session}->quit if $worker->{session};
			$worker->{session} = session($worker->{host});
			$worker->{session}->send('CALL work()');
		}
		my $victim = $workers[ rand @workers ];
		if (rand() < 0.9)
		{
			$count{cancelled}++;
			$victim->{host}->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $victim->{session}->pid . ')');
		}
		else
		{
			$count{terminated}++;
			$victim->{host}->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $victim->{session}->pid . ', 10000)');
		}
	}
	$_->safe_psql('postgres', 'INSERT INTO stop VALUES (1)') foreach @clusters;
	$_->{session}->quit foreach @workers;
	$count{$_} = $total->($_) foreach qw(done failed);
	return %count;
}

=pod

=item sql_examples(path)

The sql blocks of a document, in order: hashes with B<sql>, B<line> (of the block's begin)
and B<heading> (above the block).

=cut

sub sql_examples
{
	my ($path) = @_;
	my ($heading, $indent, @examples) = ('');
	my $number = 0;

	foreach my $line (split /^/, slurp_file($path))
	{
		$number++;
		if (defined $indent)
		{
			$line =~ s/^$indent//;
			if ($line =~ /^```/)
			{
				$indent = undef;
				next;
			}
			$examples[-1]{sql} .= $line;
		}
		elsif ($line =~ /^#+ (.*)/)
		{
			$heading = $1;
		}
		elsif ($line =~ /^( *)```sql$/)
		{
			$indent = $1;
			push @examples, { sql => '', line => $number, heading => $heading };
		}
		elsif ($line =~ /^( *)```/)
		{
			# another language: its lines are no headings
			$indent = $1;
			push @examples, { other => 1 };
		}
	}
	return grep { !$_->{other} } @examples;
}

=pod

=item replace_broker(cluster)

Terminates the broker, and waits for the next broker.  (pg_terminate_backend is for processes
with a database: for a broker it only warns.)

=cut

sub replace_broker
{
	my ($cluster) = @_;
	my $pid = broker_pid($cluster);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($pid, qr/^\d+$/, 'there is one broker on ' . $cluster->name);
	kill 'TERM', $pid;
	kill 'CONT', $pid;    # if it is stopped
	wait_until(sub { broker_pid($cluster) =~ /^(?!$pid$)\d+$/ }, $cluster->name . ' has another broker');
	return;
}

=pod

=item broker_pid(cluster)

The broker's process id, '' if there is none.  The search among the postmaster's
children needs no connection.

=cut

sub broker_pid
{
	my ($cluster) = @_;
	my $postmaster = (split /\n/, slurp_file($cluster->data_dir . '/postmaster.pid'))[0];

	foreach my $process (glob '/proc/[0-9]*')
	{
		my $stat  = eval { slurp_file("$process/stat") }    // next;
		my $title = eval { slurp_file("$process/cmdline") } // next;

		return $process =~ s/.*\///r
		  if $stat =~ /\) [^Z] $postmaster / && $title =~ /redlock broker/;
	}
	return '';
}

=pod

=item broker_sleeps(cluster)

How often the broker has gone to sleep since its start.

=back

=cut

sub broker_sleeps
{
	my ($cluster) = @_;
	my $text = slurp_file('/proc/' . broker_pid($cluster) . '/status');
	return $text =~ /^voluntary_ctxt_switches:\s+(\d+)$/m ? $1 : die "no broker\n";
}

# ----------------------------------------------------------------------------

=pod

=head1 RedlockTest::Redis

One redis-server.  Options:

=over

=item persist => 0

Writes nothing to disk: a restart loses all data.  By default each command is on disk
before its answer (appendonly yes, appendfsync always), so a restart loses nothing, and
the node votes at once after a start.

=item unix => 1

Listens on a Unix socket only.

=item host => '127.0.0.1', port => number

Listens on this address only, also of IPv6; by default on a free port.

=item tls => { cert => 'path', key => 'path', ca => 'path', clients => 'yes' }

Speaks TLS only, with this certificate.  With B<clients> yes, clients need a certificate
by B<ca>; by default clients need none.  See Certificates.

=item password => 'secret'

Wants this password.

=item conf => [ "--replicaof", "127.0.0.1 1234", ... ]

More arguments for redis-server.

=back

The server's directory is on a disk in memory, if there is one: below $NODES_TMP
(scripts/test.sh sets it, and always removes the directory) or /dev/shm.

=cut

package RedlockTest::Redis;

use strict;
use warnings;

use Carp;
use File::Path ();
use File::Temp ();
use IPC::Run;
use POSIX ();
use Time::HiRes qw(sleep time);

my @all;

sub _directory
{
	my ($base) = grep { defined && -d && -w } $ENV{NODES_TMP}, '/dev/shm';

	return PostgreSQL::Test::Utils::tempdir_short() unless defined $base;
	return File::Temp::tempdir('redlock_pg_node_XXXXXX', DIR => $base, CLEANUP => 1);
}

sub new
{
	my ($class, %options) = @_;
	my $self = bless {
		host     => $options{host} // '127.0.0.1',
		port     => $options{port} // PostgreSQL::Test::Cluster::get_free_port(),
		dir      => _directory(),
		password => $options{password},
		persist  => $options{persist} // 1,
		conf     => $options{conf} // [],
		unix     => $options{unix},
		tls      => $options{tls},
	}, $class;

	push @all, $self;
	$self->start;
	return $self;
}

sub port { return $_[0]{port}; }

# path of the Unix socket
sub socket { return "$_[0]{dir}/redis.sock"; }

# the name in redlock_nodes and in messages
sub address
{
	my ($self) = @_;
	return $self->{unix} ? $self->socket : $self->_host . ":$self->{port}";
}

# the host as a URL writes it
sub _host { return $_[0]{host} =~ /:/ ? "[$_[0]{host}]" : $_[0]{host}; }

# URL for redlock.nodes; options: host, user, password, db
sub url
{
	my ($self, %options) = @_;
	my $password = $options{password} // $self->{password};
	my $auth = defined $password ? ($options{user} // '') . ":$password\@" : '';

	return "unix://$auth" . $self->socket
	  . (defined $options{db} ? "?db=$options{db}" : '')
	  if $self->{unix};
	return
		($self->{tls} ? 'rediss' : 'redis') . "://$auth"
	  . ($options{host} // $self->_host)
	  . ":$self->{port}"
	  . (defined $options{db} ? "/$options{db}" : '');
}

sub _tls_arguments
{
	my ($port, %tls) = @_;

	return (
		'--tls-port', $port, '--tls-cert-file', $tls{cert}, '--tls-key-file', $tls{key},
		'--tls-ca-cert-file', $tls{ca}, '--tls-auth-clients', $tls{clients} // 'optional');
}

sub start
{
	my ($self) = @_;
	my $log    = "$PostgreSQL::Test::Utils::log_path/redis_$self->{port}.log";
	my @command = (
		'redis-server', '--port', $self->{unix} || $self->{tls} ? 0 : $self->{port},
		'--bind', $self->{host}, '--dir', $self->{dir}, '--save', '',
		'--daemonize', 'no',
		$self->{persist}
		? ('--appendonly', 'yes', '--appendfsync', 'always')
		: ('--appendonly', 'no'),
		$self->{unix} ? ('--unixsocket', $self->socket) : (),
		$self->{tls} ? _tls_arguments($self->{port}, %{ $self->{tls} }) : (),
		defined $self->{password} ? ('--requirepass', $self->{password}) : (),
		@{ $self->{conf} });

	croak 'already running' if $self->{pid};
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		untie *STDOUT;
		untie *STDERR;
		open STDIN,  '<',  '/dev/null';
		open STDOUT, '>>', $log;
		open STDERR, '>>', $log;
		# a sweep for left-over processes recognizes this directory
		chdir $self->{dir};
		$SIG{PIPE} = 'DEFAULT';
		exec @command or POSIX::_exit(127);
	}
	$self->{pid}    = $pid;
	$self->{paused} = 0;

	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	while ($self->cli('PING') !~ /^(PONG|LOADING)/)
	{
		my $gone = waitpid($pid, POSIX::WNOHANG()) == $pid;
		$self->{pid} = undef if $gone;
		croak "redis-server does not start; see $log" if $gone || time > $end;
		sleep 0.02;
	}
	return;
}

# as if its machine lost power
sub kill9
{
	my ($self) = @_;

	return unless $self->{pid};
	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	$self->{pid} = undef;
	return;
}

sub pause
{
	my ($self) = @_;
	kill 'STOP', $self->{pid};
	$self->{paused} = 1;
	return;
}

sub resume
{
	my ($self) = @_;
	kill 'CONT', $self->{pid};
	$self->{paused} = 0;
	return;
}

# As after a crash; empty => 1: without any data.
sub restart
{
	my ($self, %options) = @_;

	$self->kill9;
	File::Path::remove_tree("$self->{dir}/appendonlydir",
		glob "$self->{dir}/*.{aof,rdb}") if $options{empty};
	$self->start;
	return;
}

sub answers { return $_[0]{pid} && !$_[0]{paused}; }

# Returns the output of redis-cli for a command; a null reply is the empty string.
sub cli
{
	my ($self, @command) = @_;
	my ($out, $err) = ('', '');

	local $ENV{REDISCLI_AUTH} = $self->{password};
	delete local $ENV{REDISCLI_AUTH} unless defined $self->{password};
	IPC::Run::run(
		[
			'redis-cli',
			$self->{unix} ? ('-s', $self->socket)
			: ('-h', $self->{host}, '-p', $self->{port}),
			$self->{tls} ? ('--tls', '--insecure') : (),
			$self->{tls} && $self->{tls}{clients}
			? ('--cert', $self->{tls}{cert}, '--key', $self->{tls}{key}) : (),
			@command
		],
		'<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	chomp $out;
	return $out;
}

END
{
	my $exit_code = $?;

	$_->kill9 foreach @all;
	$? = $exit_code;
}

# ----------------------------------------------------------------------------

=pod

=head1 RedlockTest::Cluster

A PostgreSQL::Test::Cluster whose poll_query_until looks as often as wait_until.

=cut

package RedlockTest::Cluster;

use strict;
use warnings;

use Test::More;

use parent -norequire, 'PostgreSQL::Test::Cluster';

sub poll_query_until
{
	my ($self, $dbname, $query, $expected) = @_;
	my ($out, $err);

	$expected //= 't';
	return 1 if RedlockTest::_wait(
		sub {
			(undef, $out, $err) = $self->psql($dbname, $query);
			return $out eq $expected && $err eq '';
		},
		# PostgreSQL's own poll_query_until takes longer than its limit, too
		2 * $PostgreSQL::Test::Utils::timeout_default);
	diag("timed out: $query\nexpected: $expected\nlast output: $out\n$err");
	return 0;
}

=pod

=head1 RedlockTest::Listener

Receives messages published at a node, also between hosts.  A ? in the pattern stands
for a NUL in the name of a channel.

=over

=item $l->text, $l->forget

All messages since the begin, or since the last forget.

=item $l->waited(name, host_id)

How long the host has waited for the lock, in us, by its last message; undef: no message.

=item $l->named

The ids of the hosts that the first release named, in order; undef: no release.

=item $l->quit

=back

=cut

package RedlockTest::Listener;

use strict;
use warnings;

use IPC::Run;

sub new
{
	my ($class, $node, @patterns) = @_;
	my $self = bless { heard => '' }, $class;

	$self->{cli} = IPC::Run::start([ 'redis-cli', '-p', $node->port, 'PSUBSCRIBE', @patterns ], '<', \undef, '>', \$self->{heard});
	RedlockTest::wait_until(sub { (() = $self->text =~ /^psubscribe$/mg) == @patterns }, 'a listener');
	$self->forget;
	return $self;
}

sub text
{
	my ($self) = @_;

	$self->{cli}->pump_nb;
	return $self->{heard};
}

sub forget
{
	my ($self) = @_;

	$self->text;
	$self->{heard} = '';
	return;
}

sub waited
{
	my ($self, $name, $host) = @_;
	return ($self->text =~ /^want\x00redlock:\Q$name\E\x00$host\x00(\d+)\x00/mg)[-1];
}

sub named
{
	my ($self) = @_;
	my ($named) = $self->text =~ /^free\0\d+\0((?:\w{16}\0\d+\0)*)$/m;

	return defined $named ? [ $named =~ /(\w{16})\0/g ] : undef;
}

sub quit
{
	my ($self) = @_;

	$self->{cli}->kill_kill;
	return;
}

# ----------------------------------------------------------------------------

=pod

=head1 RedlockTest::Session

A session of psql in the background.  Options: B<dbname>, or B<connstr>, a whole connection string.

A result is a hash: B<out> (text), B<err> (text), B<state> (SQLSTATE of the first
error, '' if there was none), B<message>, B<detail>, B<hint> (of this error), and
B<dead> (true if the session has ended).

=over

=item $s->query(sql)

The output; dies on an error.

=item $s->run(sql)

The result, also of an error.

=item $s->send(sql), $s->done, $s->result

Start a query; tell whether the query has ended, without waiting; wait for the result.

=item $s->pid

The id of the session's server process.

=item $s->quit, $s->vanish

End the session with \q; kill psql, so that the connection breaks.

=back

=cut

package RedlockTest::Session;

use strict;
use warnings;

use Carp;
use IPC::Run;
use Test::More;

sub new
{
	my ($class, $cluster, %options) = @_;
	my $self = bless { in => '', out => '', err => '', number => 0 }, $class;

	$self->{timeout} = IPC::Run::timer($PostgreSQL::Test::Utils::timeout_default);
	$self->{psql}    = IPC::Run::start(
		[
			$cluster->installed_command('psql'), '-XAtq',
			'-v', 'VERBOSITY=verbose', '-v', 'ON_ERROR_STOP=0',
			'-d', $options{connstr} // $cluster->connstr($options{dbname} // 'postgres'),
			'-f', '-'
		],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err},
		$self->{timeout});
	$self->{pid} = $self->query('SELECT pg_backend_pid()');
	return $self;
}

sub pid { return $_[0]{pid}; }

sub send
{
	my ($self, $sql) = @_;

	croak 'a query is running' if $self->{mark};
	note "session of pid ", $self->{pid} // '?', ": $sql";
	$self->{mark} = 'end of query ' . ++$self->{number};
	$self->{out} = $self->{err} = '';
	$self->{timeout}->start;
	$self->{in} .= "$sql\n;\n\\echo '$self->{mark}'\n\\warn '$self->{mark}'\n";
	$self->_pump(1);
	return;
}

# Moves input and output; waits for some, unless $now.  When psql ends, the pipe breaks: no error.
sub _pump
{
	my ($self, $now) = @_;

	return if $self->{dead};
	eval { $now ? $self->{psql}->pump_nb : $self->{psql}->pump; 1 }
	  or $self->{dead} = 1;
	$self->{dead} = 1 unless $self->{dead} || $self->{psql}->pumpable;
	return;
}

sub _complete
{
	my ($self) = @_;
	return $self->{dead}
	  || ( $self->{out} =~ /^\Q$self->{mark}\E\n/m
		&& $self->{err} =~ /^\Q$self->{mark}\E\n/m);
}

sub done
{
	my ($self) = @_;

	croak 'no query is running' unless $self->{mark};
	$self->_pump(1);
	return $self->_complete;
}

sub result
{
	my ($self) = @_;

	croak 'no query is running' unless $self->{mark};
	until ($self->_complete)
	{
		if ($self->{timeout}->is_expired)
		{
			my $seen = "out: $self->{out}\nerr: $self->{err}";
			$self->{psql}->kill_kill;
			croak "query timed out; $seen";
		}
		$self->_pump(0);
	}

	my ($out, $err) = ($self->{out}, $self->{err});
	s/\n?^\Q$self->{mark}\E\n//m foreach $out, $err;
	$self->{mark} = undef;
	$self->{timeout}->reset;
	note "result: $out" if $out ne '';
	note "messages: $err" if $err ne '';

	my ($state, $message) = $err =~ /(?:ERROR|FATAL|PANIC):  ([0-9A-Z]{5}): (.*)/;
	my ($after) = $err =~ /(?:ERROR|FATAL|PANIC):  (.*)/s;
	my %more;
	foreach my $field (qw(DETAIL HINT))
	{
		$more{$field} = $1
		  if ($after // '') =~ /^$field:  (.*?)\n?(?=^[A-Z]+:  |\z)/ms;
	}
	return {
		out     => $out,
		err     => $err,
		state   => $state // '',
		message => $message // '',
		detail  => $more{DETAIL} // '',
		hint    => $more{HINT} // '',
		dead    => $self->{dead},
	};
}

sub run
{
	my ($self, $sql) = @_;
	$self->send($sql);
	return $self->result;
}

sub query
{
	my ($self, $sql) = @_;
	my $result = $self->run($sql);

	croak "query failed: $sql\n$result->{err}"
	  if $result->{state} ne '' || $result->{dead};
	return $result->{out};
}

sub quit
{
	my ($self) = @_;

	return if $self->{finished}++;
	$self->{in} .= "\\q\n" unless $self->{dead};
	eval { $self->{psql}->finish };
	return;
}

sub vanish
{
	my ($self) = @_;

	return if $self->{finished}++;
	$self->{psql}->signal('KILL');
	eval { $self->{psql}->finish };
	$self->{dead} = 1;
	return;
}

1;
