# Nodes with TLS, and faults: certificates, names, keys, files, URLs with the wrong scheme.
#
# Protects from: a node trusted with a wrong certificate; a private key readable by others; a
# broken file cutting off working nodes; an error not saying what to mend.  In a build without
# TLS: a rediss:// URL accepted.
#
# t/tls_hostile.t tests nodes that hang in the handshake.

use strict;
use warnings;

use Certificates;
use File::Copy;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $missing = tls_is_missing();

if ($missing && $missing =~ /build/)
{
	without_tls();
	note "the rest is skipped: $missing";
	done_testing();
	exit;
}
plan skip_all => $missing if $missing;

my $ours   = Certificates->new('ours');
my $theirs = Certificates->new('theirs');
my $tls    = $ours->issue('node');
my $client = $ours->issue('client', names => 'DNS:client');
my $dir    = PostgreSQL::Test::Utils::tempdir();

my @nodes = map { redis_node(tls => $tls) } 1 .. 3;
my $host  = redlock_cluster('a', nodes => \@nodes, conf => "redlock.tls_ca_file = '$tls->{ca}'");
my $s     = session($host);

# Changes settings by ALTER SYSTEM, and reloads.
sub set
{
	my (%settings) = @_;

	foreach my $name (sort keys %settings)
	{
		$s->query("ALTER SYSTEM SET redlock.$name = '$settings{$name}'");
	}
	$s->query('SELECT pg_reload_conf()');
	return;
}

sub locks_work
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_nodes_ready($host, 3);
	# a node votes once it has answered a beat, shortly after it is ready
	wait_until(sub { ($s->run("SELECT redlock_try('job')")->{out} // '') eq 't' }, "$what: locks work");
}

# Waits until the view shows this error for each of the nodes.
sub node_says
{
	my ($what, $pattern, @which) = @_;
	my @said;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $node (@which)
	{
		wait_until(
			sub {
				@said = split /\|/, $s->query("SELECT state, last_error FROM redlock_nodes WHERE node = '"
					  . $node->address . "'");
				return $said[0] ne 'ready' && ($said[1] // '') =~ $pattern;
			},
			"$what: the view says why")
		  or diag("it says: @said");
	}
	note "$what: $said[1]";
	return;
}

sub call_says
{
	my ($what, $pattern) = @_;
	my $result = $s->run("SELECT redlock_try('job')");

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '08006', "$what: no quorum is a connection failure");
	like($result->{detail}, $pattern, "$what: the error says why");
}

# With these settings all nodes fail with this error.
sub all_fail
{
	my ($what, $pattern, %settings) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	set(%settings);
	node_says($what, $pattern, @nodes);
	call_says($what, $pattern);
}

# Starts a server that answers any input with the text and closes the connection; returns its port.
my @talkers;

sub talker
{
	my ($words) = @_;
	my $listener = IO::Socket::INET->new(Listen => 8, LocalAddr => '127.0.0.1') or die $!;
	my $pid = fork // die $!;

	if ($pid == 0)
	{
		while (my $connection = $listener->accept)
		{
			sysread $connection, my $bytes, 4096;
			syswrite $connection, $words;
		}
		POSIX::_exit(0);
	}
	push @talkers, $pid;
	return $listener->sockport;
}

# Starts a server by the openssl command.  The server speaks TLS, but not Redis.
sub openssl_server
{
	my ($port, @options) = @_;
	my $pid = fork // die $!;

	if ($pid == 0)
	{
		open STDOUT, '>>', "$PostgreSQL::Test::Utils::log_path/openssl_$port.log";
		open STDERR, '>&', \*STDOUT;
		exec 'openssl', 's_server', '-www', '-accept', $port, @options or POSIX::_exit(127);
	}
	push @talkers, $pid;
	return;
}

END
{
	my $exit_code = $?;

	kill 'KILL', $_ foreach @talkers;
	$? = $exit_code;
}

# Waits until the view shows this error for the faulty node.
sub said
{
	my ($text, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(
		sub {
			$s->query("SELECT count(*) FROM redlock_nodes WHERE last_error = '$text' AND node NOT IN ("
				  . join(', ', map { "'" . $_->address . "'" } @nodes)
				  . ')') == 1;
		},
		"$what: the view says why")
	  or diag($s->query('SELECT * FROM redlock_nodes'));
	return;
}

# ---- locks by TLS ----

locks_work('TLS');
is($s->query('SHOW redlock.nodes'), join(', ', map { $_->url } @nodes), 'SHOW prints rediss://');
ok($s->query("SELECT redlock_acquire('long', scope => 'session') > 0"), 'a lock is taken');
$s->query("SELECT redlock_release('long')");

my $other = session($host);
$s->query("BEGIN; SELECT redlock_acquire('waited')");
$other->send("SELECT redlock_acquire('waited') > 0");
$s->query('COMMIT');
is($other->result->{out}, 't', 'a waiter gets the lock after the commit');
$other->quit;

# The releases of many locks are longer than a TLS record.
$s->query(
	"BEGIN; SELECT sum(redlock_acquire('many ' || i)) > 0 FROM generate_series(1, 400) i; COMMIT");
locks_work('after many locks');

# Commands for a near node wait for the answer to the commands before, and share one record.
my @askers = map { session($host) } 1 .. 8;
my @counts;
set(node_timeout => '10s');
foreach (1 .. 9)
{
	my $calls = sub { $nodes[0]->cli(qw(INFO commandstats)) =~ /^cmdstat_evalsha:calls=(\d+)/m ? $1 : die };
	my $before = $calls->();

	$_->pause foreach @nodes;
	foreach my $i (0 .. $#askers)
	{
		my $sleeps = broker_sleeps($host);
		$askers[$i]->send("SELECT redlock_try('asked $i', scope => 'session')");
		wait_until(sub { broker_sleeps($host) > $sleeps }, "request $i, in a pass of its own");
	}
	$_->resume foreach @nodes;
	is($_->result->{out}, 't', 'all get their locks') foreach @askers;
	push @counts, $calls->() - $before;
	$_->query('SELECT redlock_release_all()') foreach @askers;
}
cmp_ok((sort { $a <=> $b } @counts)[4], '<=', @askers / 2, "calls for @{[scalar @askers]} requests: @counts");
$_->quit foreach @askers;
set(node_timeout => '500ms');

# ---- faulty certificates ----

all_fail('unknown authority', qr/its certificate is from an unknown authority \(/,
	tls_ca_file => $theirs->file);
all_fail('authorities of the system', qr/its certificate is from an unknown authority \(/, tls_ca_file => '');
set(tls_ca_file => $ours->file);
locks_work('known again');

my %bad = (
	'expired'        => [ $ours->issue('expired', expired => 1),               qr/has expired/ ],
	'another name'   => [ $ours->issue('named',   names => 'DNS:elsewhere'), qr/is for another name than that in its URL/ ],
	'another number' => [ $ours->issue('numbered', names => 'IP:127.0.0.2'), qr/is for another name than that in its URL/ ]);

foreach my $what (sort keys %bad)
{
	my ($certificate, $pattern) = @{ $bad{$what} };
	my @bad_nodes = map { redis_node(tls => $certificate) } 1 .. 3;

	set(nodes => node_urls(@bad_nodes));
	node_says($what, $pattern, @bad_nodes);
	call_says($what, $pattern);
	if ($what ne 'expired')
	{
		# the authority is right, and tls_verify = ca asks for nothing more
		set(tls_verify => 'ca');
		locks_work("$what, tls_verify = ca");
	}
	set(tls_verify => 'none');
	locks_work("$what, tls_verify = none");
	set(tls_verify => 'full');
	node_says("$what, tls_verify = full again", $pattern, @bad_nodes);
	$_->kill9 foreach @bad_nodes;
}

# With a name in the URL, the broker asks for this name, and verifies it.
my $by_name = $ours->issue('by_name', names => 'DNS:localhost');
my @named = map { redis_node(tls => $by_name) } 1 .. 3;
set(nodes => join(',', map { $_->url(host => 'localhost') } @named));
locks_work('by name');
set(nodes => node_urls(@named));
node_says('a certificate without the address', qr/is for another name/, @named);
$_->kill9 foreach @named;

# A name in the subject, or in an email address, does not count.
my $subject = $ours->issue('localhost', names => 'email:localhost@example.org');
my @subjects = map { redis_node(tls => $subject) } 1 .. 3;
set(nodes => join(',', map { $_->url(host => 'localhost') } @subjects));
wait_until(
	sub {
		$s->query("SELECT count(*) FROM redlock_nodes WHERE last_error ~ 'is for another name'") == 3;
	},
	'a certificate with the name in its subject only')
  or diag($s->query('TABLE redlock_nodes'));
$_->kill9 foreach @subjects;

# A full name, with a dot at the end, is verified without the dot.
SKIP:
{
	my $faults = PostgreSQL::Test::Utils::tempdir();
	local $ENV{LD_PRELOAD} = preload('faults') // skip 'no C compiler', 2;
	local $ENV{FAULTS_DIR} = $faults;
	append_to_file("$faults/names", "right.invalid. 127.0.0.1\nwrong.invalid. 127.0.0.1\n");

	my $whole = $ours->issue('whole', names => 'DNS:right.invalid');
	my @whole = map { redis_node(tls => $whole) } 1 .. 3;
	# sends the right certificate only to clients that ask for right.invalid, without a dot
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $strange = $theirs->issue('strange');
	openssl_server($port, '-cert', $strange->{cert}, '-key', $strange->{key},
		'-servername', 'right.invalid', '-cert2', $whole->{cert}, '-key2', $whole->{key});
	my @urls = ((map { $_->url(host => 'right.invalid.') } @whole[ 0, 1 ]),
		$whole[2]->url(host => 'wrong.invalid.'), "rediss://right.invalid.:$port");
	my $dotted = redlock_cluster('dotted', nodes => \@urls, ready => 2, conf => "redlock.tls_ca_file = '$tls->{ca}'");

	foreach (
		[ $whole[2]->port, qr/is for another name/,       'a dot after another name' ],
		[ $port,           qr/within 500 ms \(handshake/, 'a dot, and a server with two certificates' ])
	{
		my ($at, $pattern, $what) = @$_;
		my $said;
		wait_until(
			sub {
				$said = $dotted->safe_psql('postgres', "SELECT last_error FROM redlock_nodes WHERE node ~ ':$at\$'");
				return $said =~ $pattern;
			},
			$what) or diag("it says: $said");
	}
	$dotted->stop;
	$_->kill9 foreach @whole;
}

# An address of IPv6 must be in the certificate, too.
SKIP:
{
	skip 'no IPv6 on the loopback interface here', 2
	  unless (eval { slurp_file('/proc/net/if_inet6') } // '') =~ /^0{31}1 /m;
	my @six = map { redis_node(tls => $tls, conf => [ '--bind', '127.0.0.1', '::1' ]) } 1 .. 3;
	my @four = map { redis_node(tls => $by_name, conf => [ '--bind', '127.0.0.1', '::1' ]) } 1 .. 3;

	set(nodes => join(',', map { $_->url(host => '[::1]') } @six));
	locks_work('by an address of IPv6');
	set(nodes => join(',', map { $_->url(host => '[::1]') } @four));
	wait_until(
		sub {
			$s->query("SELECT count(*) FROM redlock_nodes WHERE last_error ~ 'is for another name'") == 3;
		},
		'by an address of IPv6 that the certificate has not');
	$_->kill9 foreach @six, @four;
}

# ---- a plain server behind rediss://, a server with TLS behind redis:// ----

my @plain = redis_nodes(3);
my $wrong_urls = join ',', map { $_->url =~ s/redis:/rediss:/r } @plain;
set(nodes => $wrong_urls);
node_says('a plain server behind rediss://', qr/no answer within 500 ms \(TLS handshake; if it has no TLS, its URL begins with redis:/, @plain);
call_says('a plain server behind rediss://', qr/if it has no TLS, its URL begins with redis:/);
set(nodes => node_urls(@plain));
locks_work('the same without TLS');

set(nodes => join ',', map { $_->url =~ s/rediss:/redis:/r } @nodes);
node_says('a server with TLS behind redis://', qr/if it wants TLS, its URL begins with rediss:/, @nodes);
call_says('a server with TLS behind redis://', qr/if it wants TLS, its URL begins with rediss:/);
set(nodes => node_urls(@nodes));
locks_work('the same with TLS');

# A plain server that answers.
set(nodes => node_urls(@nodes[ 0, 1 ], 'rediss://127.0.0.1:' . talker("-ERR max number of clients reached\r\n")));
said('it does not speak TLS; if it should not, its URL begins with redis://', 'a word of Redis');

# A server with TLS that answers plain text with an alert.
set(nodes => node_urls(@nodes[ 0, 1 ], 'redis://127.0.0.1:' . talker("\x15\x03\x03\x00\x02\x02\x46")));
said('it speaks TLS: its URL should begin with rediss://', 'an alert');

# A server with two certificates sends the certificate for the requested name; an address is no
# name.
my $names_port = PostgreSQL::Test::Cluster::get_free_port();
my $other = $theirs->issue('default');
openssl_server($names_port, '-cert', $other->{cert}, '-key', $other->{key},
	'-servername', 'localhost', '-cert2', $tls->{cert}, '-key2', $tls->{key});
set(nodes => node_urls(@nodes[ 0, 1 ], "rediss://localhost:$names_port"));
said('no answer within 500 ms (handshake)', 'the certificate of the name');
set(nodes => node_urls(@nodes[ 0, 1 ], "rediss://127.0.0.1:$names_port"));
wait_until(
	sub {
		$s->query("SELECT last_error ~ 'from an unknown authority' FROM redlock_nodes"
			  . " WHERE node = '127.0.0.1:$names_port'") eq 't';
	},
	'an address asks for no name');

# A server with old protocols only.
my $old_port = PostgreSQL::Test::Cluster::get_free_port();
openssl_server($old_port, '-cert', $tls->{cert}, '-key', $tls->{key}, '-tls1_1', '-cipher', 'DEFAULT:@SECLEVEL=0');
set(nodes => node_urls(@nodes[ 0, 1 ], "rediss://127.0.0.1:$old_port"));
said('it has no TLS 1.2 or later', 'old protocols');
# ---- a silent server ----

# The broker waits without polling.
my $mute = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die $!;
my $mute_url = 'rediss://127.0.0.1:' . $mute->sockport;
set(nodes => node_urls(@nodes[ 0, 1 ], $mute_url));
said('no answer within 500 ms (TLS handshake; if it has no TLS, its URL begins with redis://)', 'a silent server instead of a node');

sub reads { return slurp_file('/proc/' . broker_pid($host) . '/io') =~ /^syscr: (\d+)/m ? $1 : die; }
sub failed_at { return $s->query("SELECT last_error_at FROM redlock_nodes WHERE node ~ ':" . $mute->sockport . "\$'"); }

my $reads_before = reads();
foreach my $try (1 .. 3)
{
	my $before = failed_at();
	wait_until(sub { failed_at() ne $before }, "mute: it has tried again");
}
my $reads = reads() - $reads_before;
cmp_ok($reads, '<', 1000, 'mute: the broker has rested') or diag("it has read $reads times");
$mute->close;
set(nodes => node_urls(@nodes));
locks_work('after one that was mute');

# ---- client certificates ----

foreach my $version ('TLSv1.2', 'TLSv1.3')
{
	my @mutual = map {
		redis_node(
			tls      => { %$tls, clients => 'yes' },
			password => 'geheim',
			conf     => [ '--tls-protocols', $version ])
	} 1 .. 3;

	$_->cli('ACL', 'SETUSER', 'locker', 'on', '>anders', '~*', '&*', '+@all') foreach @mutual;
	set(nodes => node_urls(@mutual), tls_cert_file => '', tls_key_file => '');
	node_says("$version, no certificate", qr/it wants a client certificate \(redlock.tls_cert_file\)/, @mutual);
	call_says("$version, no certificate", qr/it wants a client certificate/);

	my $strange = $theirs->issue("strange $version" =~ s/\W//gr);
	set(tls_cert_file => $strange->{cert}, tls_key_file => $strange->{key});
	node_says("$version, of an authority that it does not know",
		qr/it does not accept the client certificate: unknown CA/, @mutual);

	my $late = $ours->issue("late $version" =~ s/\W//gr, expired => 1);
	set(tls_cert_file => $late->{cert}, tls_key_file => $late->{key});
	node_says("$version, expired", qr/it does not accept the client certificate: certificate expired/, @mutual);

	set(tls_cert_file => $client->{cert}, tls_key_file => $client->{key});
	locks_work("$version, both certificates and a password");
	set(nodes => join ',', map { $_->url(user => 'locker', password => 'anders') } @mutual);
	locks_work("$version, a user of an ACL");
	set(nodes => join ',', map { $_->url(user => 'locker', password => 'falsch') } @mutual);
	node_says("$version, a wrong password", qr/WRONGPASS/, @mutual);
	$_->kill9 foreach @mutual;
}
set(nodes => node_urls(@nodes));
locks_work('certificates that nobody asks for');

# ---- values that ALTER SYSTEM refuses ----

my $empty = "$dir/empty.crt";
my $open_key = "$dir/open.key";
append_to_file($empty, "no certificate\n");
copy($client->{key}, $open_key) or die $!;
chmod 0644, $open_key;

my @refused = (
	[ 'a directory',      'tls_ca_file',   $dir,          qr/^File "\Q$dir\E" is a directory\.$/ ],
	[ 'no file',          'tls_ca_file',   "$dir/none",   qr/^File "\Q$dir\E\/none" could not be read: No such file or directory\.$/ ],
	[ 'a device',         'tls_ca_file',   '/dev/null',   qr/is not a regular file\.$/ ],
	[ 'no certificate',   'tls_ca_file',   $empty,        qr/has no certificate in PEM format\.$/ ],
	[ 'a key for it',     'tls_cert_file', $client->{key},  qr/has no certificate in PEM format\.$/ ],
	[ 'not a key',        'tls_key_file',  $client->{cert}, qr/others may read or write|has no private key in PEM format/ ],
	[ 'a key for others', 'tls_key_file',  $open_key,     qr/is a private key that others may read or write\.$/ ]);

foreach (@refused)
{
	my ($what, $name, $value, $detail) = @$_;
	my $before = $s->query("SHOW redlock.$name");
	my $result = $s->run("ALTER SYSTEM SET redlock.$name = '$value'");

	is($result->{state}, '22023', "$what: refused");
	is($result->{message}, "invalid value for parameter \"redlock.$name\": \"$value\"", "$what: the setting is named");
	like($result->{detail}, $detail, "$what: says why");
	is($s->query("SHOW redlock.$name"), $before, "$what: the setting keeps its value");
}
like($s->run("ALTER SYSTEM SET redlock.tls_key_file = '$open_key'")->{hint},
	qr/u=rw \(0600\) or less/, 'a key for others: says what to do');
my $socket = $s->run("ALTER SYSTEM SET redlock.nodes = 'redis://h:1, rediss:///tmp/s'");
is($socket->{state}, '22023', 'a socket with TLS: refused');
like($socket->{message}, qr/node 2: a Unix socket has no TLS; its URL starts with unix:/,
	'a socket with TLS: the place in the list');
is($s->run("ALTER SYSTEM SET redlock.tls_verify = 'maybe'")->{state}, '22023', 'no such verification');

# The same from the configuration file: the server keeps the former settings.
$host->append_conf('postgresql.conf', "redlock.tls_ca_file = '$empty'");
$s->query('ALTER SYSTEM RESET redlock.tls_ca_file');
my $log_before = -s $host->logfile;
$s->query('SELECT pg_reload_conf()');
wait_until(
	sub {
		slurp_file($host->logfile, $log_before) =~
		  /invalid value for parameter "redlock.tls_ca_file".*\n.*has no certificate/;
	},
	'a file without a certificate is refused at a reload');
is(psql_result($host, 'SHOW redlock.tls_ca_file')->{out}, $ours->file, 'the former setting stays');
locks_work('after a setting that was refused');
$host->append_conf('postgresql.conf', "redlock.tls_ca_file = '" . $ours->file . "'");

# ---- files that change ----

my %file = (ca => "$dir/ca.crt", cert => "$dir/client.crt", key => "$dir/client.key");

# Replaces a file by a rename, as programs that renew certificates do.
sub replace
{
	my ($which, $from, $mode) = @_;

	copy($from, "$file{$which}.new") or die "$from: $!";
	chmod $mode // 0600, "$file{$which}.new";
	rename "$file{$which}.new", $file{$which} or die $!;
	return;
}

# The start of the oldest connection; the broker renews connections one by one.
sub connections_since { return $s->query("SELECT min(since) FROM redlock_nodes"); }

# Waits until the log says, once, that the broker keeps the former settings.
sub is_kept
{
	my ($what, $pattern) = @_;
	my $before = -s $host->logfile;
	my $since  = connections_since();
	my $new;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s->query('SELECT pg_reload_conf()');
	wait_until(
		sub {
			$new = slurp_file($host->logfile, $before);
			return $new =~ /TLS settings of redlock nodes were not loaded: .*$pattern/;
		},
		"$what: the log names the fault");
	is(scalar(() = $new =~ /were not loaded/g), 1, "$what: once");
	like($new, qr/DETAIL:  The settings that were loaded before stay in force/, "$what: the log says that the earlier settings stay");
	# a new connection to a restarted node uses the former settings
	$nodes[0]->restart;
	locks_work($what);
}

replace(ca => $ours->file);
replace(cert => $client->{cert});
replace(key => $client->{key});
set(tls_ca_file => $file{ca}, tls_cert_file => $file{cert}, tls_key_file => $file{key});
locks_work('other files');

# A held lease outlives a change of connections.
my $since = $s->query("SELECT max(since) FROM redlock_nodes");
$s->query("BEGIN; SELECT redlock_acquire('held', ttl => '2 s')");
replace(ca => $ours->file);
$s->query('SELECT pg_reload_conf()');
wait_until(sub { connections_since() gt $since }, 'a new file: connections are made again');
my $renewed = $s->query('SELECT renewed FROM redlock_stats');
wait_until(sub { $s->query('SELECT renewed FROM redlock_stats') > $renewed }, 'a new file: a lease is renewed');
is($s->run('COMMIT')->{state}, '', 'a new file: and still held');
locks_work('a new file');

# Many leases outlive reloads without a pause.
$s->query("BEGIN; SELECT redlock_acquire('held ' || i, ttl => '1 s') FROM generate_series(1, 20) i");
my ($renewed_before, $failed_before) = split /\|/, $s->query('SELECT renewed, unrenewed FROM redlock_stats');
my $failed;
wait_until(
	sub {
		replace(ca => $ours->file);
		$s->query('SELECT pg_reload_conf()');
		($renewed, $failed) = split /\|/, $s->query('SELECT renewed, unrenewed FROM redlock_stats');
		return $renewed - $renewed_before + $failed - $failed_before > 300;
	},
	'new files without a pause: leases are to be renewed');
cmp_ok($failed - $failed_before, '<', ($renewed - $renewed_before) / 2, 'new files without a pause: and are, but for some');
is($s->run('COMMIT')->{state}, '', 'new files without a pause: and still held');
my $last = $s->query('SELECT clock_timestamp()');
replace(ca => $ours->file);
$s->query('SELECT pg_reload_conf()');
wait_until(sub { connections_since() gt $last }, 'new files without a pause: the last one is in force');
locks_work('new files without a pause');
# A broker that knows a new node has read the files, too.  For a while the broker may still renew
# connections because of an earlier reload.
my $more = redis_node(tls => $tls);
wait_until(
	sub {
		my $before = $s->query('SELECT max(since) FROM redlock_nodes');

		set(nodes => node_urls(@nodes, $more));
		wait_nodes_ready($host, 4);
		my $after = $s->query("SELECT max(since) FROM redlock_nodes WHERE node <> '" . $more->address . "'");
		set(nodes => node_urls(@nodes));
		wait_nodes_ready($host, 3);
		return $after eq $before;
	},
	'a reload with the same files: connections stay');
locks_work('a reload with the same files');

# A new broker connects to the former broker's nodes by TLS, too.
replace_broker($host);
locks_work('another broker');

replace(key => $client->{key}, 0640);
is_kept('a key that the group may read', qr/redlock.tls_key_file is a private key that others may/);
replace(key => $tls->{key});
is_kept('a key of another certificate', qr/redlock.tls_key_file can't be used: .*mismatch/);
PostgreSQL::Test::Utils::run_command(
	[ 'openssl', 'ec', '-in', $client->{key}, '-aes256', '-passout', 'pass:x', '-out', "$dir/secret.key" ]);
replace(key => "$dir/secret.key");
is_kept('a key with a passphrase', qr/redlock.tls_key_file can't be used: it has a passphrase/);
replace(key => $client->{key});
replace(ca => $empty);
is_kept('no certificate any more', qr/redlock.tls_ca_file has no certificate/);
unlink $file{ca};
is_kept('no file any more', qr/redlock.tls_ca_file could not be read: No such file/);
replace(ca => $ours->file);

# each setting is valid by itself, so the check of a setting cannot find the fault
$s->query('ALTER SYSTEM RESET redlock.tls_key_file');
is_kept('a certificate without a key', qr/redlock.tls_cert_file is set without redlock.tls_key_file/);

# A broker that starts with unusable settings has no former settings.
$host->restart;
$s = session($host);
node_says('a broker that begins so', qr/redlock.tls_cert_file is set without redlock.tls_key_file/, @nodes);
call_says('a broker that begins so', qr/redlock.tls_cert_file is set without redlock.tls_key_file/);
set(tls_key_file => $file{key});
locks_work('mended');
unlink $file{ca};
$host->restart;
$s = session($host);
node_says('a server that starts without the file', qr/redlock.tls_ca_file could not be read/, @nodes);
is($s->query('SHOW redlock.tls_ca_file'), $file{ca}, 'which does not become that of the system');
replace(ca => $ours->file);
$s->query('SELECT pg_reload_conf()');
locks_work('the file is there');

# Another authority replaces the former authority in the file.
replace(ca => $theirs->file);
$s->query('SELECT pg_reload_conf()');
node_says('another authority in the same file', qr/unknown authority/, @nodes);
my @moved = map { redis_node(tls => $theirs->issue("moved$_")) } 1 .. 3;
set(tls_cert_file => '', tls_key_file => '', nodes => node_urls(@moved));
locks_work('nodes with certificates of that one');

# Both authorities, as during a change from the former to the new authority.
append_to_file($file{ca}, slurp_file($ours->file));
set(nodes => node_urls($nodes[0], @moved[ 1, 2 ]));
locks_work('two authorities in one file');

# ---- from TCP to TLS, one node at a time, as docs/how-to/tls.md says ----

my @nodes_to_change = redis_nodes(3);
set(nodes => node_urls(@nodes_to_change));
wait_nodes_ready($host, 3);
my $other_host = redlock_cluster('b', nodes => \@nodes_to_change);
$s->query("SELECT redlock_acquire('kept', ttl => '2 s', scope => 'session')");
foreach my $node (@nodes_to_change)
{
	$node->{tls} = $tls;
	$node->restart;
	set(nodes => node_urls(@nodes_to_change));
	wait_nodes_ready($host, 3);
	# the other host still has the former list
	ok($host->poll_query_until('postgres', 'SELECT count(*) = 2 AND bool_and(agrees) FROM redlock_hosts'), 'hosts with and without TLS agree');
	my $renewed = $s->query('SELECT renewed FROM redlock_stats');
	wait_until(sub { $s->query('SELECT renewed FROM redlock_stats') > $renewed + 1 }, 'a lease is renewed');
}
is($s->query("SELECT redlock_release('kept')"), 't', 'the lease outlived the change to TLS');
$other_host->stop;
locks_work('nodes changed to TLS');

$s->quit;
done_testing();

# ---- a build without TLS ----

sub without_tls
{
	my $node = redis_node();
	my $host = redlock_cluster('a', nodes => [$node]);
	my $s    = session($host);
	my $urls = 'redis://h:1, ' . $node->url . ", rediss://:geheim\@h:2";

	my $result = $s->run("ALTER SYSTEM SET redlock.nodes = '$urls'");
	is($result->{state}, '0A000', 'rediss:// is refused when it is set');
	is( $result->{message},
		'invalid value for parameter "redlock.nodes": node 3: this build of redlock_pg has no TLS (rediss://)',
		'with its place in the list');
	like($result->{detail}, qr/had no hiredis 1\.0 or later/, 'says why');
	like($result->{hint}, qr/libhiredis-dev and libssl-dev/, 'says what to install');

	$host->append_conf('postgresql.conf', "redlock.nodes = '$urls'");
	$s->query('SELECT pg_reload_conf()');
	wait_until(sub { slurp_file($host->logfile) =~ /LOG:  invalid value .*: node 3: this build of redlock_pg/ },
		'it is refused at a reload');
	is(psql_result($host, 'SHOW redlock.nodes')->{out}, $node->url, 'the former setting stays');
	is($s->query("SELECT redlock_try('job')"), 't', 'locks work');
	$s->quit;
	return;
}
