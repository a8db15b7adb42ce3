# Statistics over stops of the server: kept over a clean stop, in a file that the next start reads
# and removes.
#
# Protects from: counts, times or starts of the statistics lost over a clean stop of a primary or a
# standby, or by a failed start, or given to another node; a release at the stop not counted;
# statistics surviving a crash or an immediate stop; a damaged or foreign file keeping the server
# from starting, or filling the views; a file staying beside a running server.

use strict;
use warnings;

use File::Basename;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $host  = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '60s'", init => { allows_streaming => 1 });
my $file  = $host->data_dir . '/pg_stat/redlock_pg.stat';

# All statistics of the past.  A start connects to each node again.
my $past = <<'SQL';
SELECT s.granted, s.refused, s.joined, s.tries_refused, s.timed_out, s.taken_idle, s.total_wait_time, s.total_hold_time, s.stats_reset,
       (SELECT string_agg(n::text, ' ' ORDER BY node)
          FROM (SELECT node, commands, answers, connection_errors, quarantines, total_answer_time, max_answer_time,
                       answer_histogram, stats_reset FROM redlock_stat_nodes) n),
       (SELECT string_agg(r::text, ' ' ORDER BY resource, permit) FROM redlock_stat_resources r)
  FROM redlock_stats s
SQL

my $counts = "SELECT granted, (SELECT sum(commands) FROM redlock_stat_nodes),
	(SELECT string_agg(resource || ' ' || from_nodes, ',') FROM redlock_stat_resources) FROM redlock_stats";

sub past { return $host->safe_psql('postgres', $past); }

# Waits until the nodes have acknowledged all releases.  Afterwards nothing changes the counts.
sub settled
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { $host->safe_psql('postgres', 'SELECT releasing = 0 AND locks = 0 FROM redlock_stats') eq 't' },
		'all is released');
}

sub started
{
	$host->start;
	wait_nodes_ready($host, 3);
	ok(!-e $file, 'no file beside a running server');
	return;
}

# ---- a clean stop ----

my ($s, $t) = map { session($host) } 1, 2;
$s->query("SELECT redlock_acquire('job', scope => 'session'), redlock_release('job')") foreach 1 .. 3;
$_->query("SELECT redlock_acquire('read', scope => 'session', mode => 'shared')") foreach $s, $t;
$s->query("SELECT redlock_acquire('pool', scope => 'session', permits => 2)");
$s->query("SELECT redlock_acquire('taken', scope => 'session')");
is($t->query("SELECT redlock_try('taken')"), 'f', 'a refusal');
$_->quit foreach $s, $t;
settled();
like($host->safe_psql('postgres', $counts), qr/^[1-9]\d*\|[1-9]\d*\|.*read 1/, 'there is something to keep');

foreach my $mode (qw(fast smart fast))
{
	my $before = past();

	$host->stop($mode);
	ok(-s $file, "a file after a $mode stop");
	is((stat $file)[2] & 0777, (stat $host->data_dir . '/PG_VERSION')[2] & 0777, 'with the rights of the other files');
	started();
	is(past(), $before, "a $mode stop keeps all");
}

# ---- a start that fails ----

{
	my $before = past();
	my $conf = $host->data_dir . '/postgresql.conf';
	my $good = slurp_file($conf);

	$host->stop;
	append_to_file($conf, "listen_addresses = '192.0.2.1'\nunix_socket_directories = ''\n");
	ok(!$host->start(fail_ok => 1), 'a server without an address does not start');
	open my $out, '>', $conf or die "$conf: $!";
	print $out $good;
	close $out or die "$conf: $!";
	started();
	is(past(), $before, 'a failed start costs no statistics');
}

# ---- at the stop, and after the stop ----

$s = session($host);
$s->query("SELECT redlock_acquire('held', scope => 'session')");
is($host->safe_psql('postgres', "SELECT total_hold_time FROM redlock_stat_resources WHERE resource = 'held'"), 0,
	'a lock that is held');
$host->stop;
started();
is($host->safe_psql('postgres', "SELECT from_nodes, total_hold_time > 0 FROM redlock_stat_resources WHERE resource = 'held'"),
	'1|t', 'the release at the stop counts');
$s = session($host);
$s->query("SELECT redlock_acquire('job', scope => 'session'), redlock_release('job')");
is($host->safe_psql('postgres', "SELECT from_nodes FROM redlock_stat_resources WHERE resource = 'job'"), 4,
	'a restored lock counts on in its row');
$s->quit;
settled();

# ---- a reset, and another order of the nodes ----

{
	my $first = $nodes[0]->address;
	my $of_first = "SELECT commands, stats_reset FROM redlock_stat_nodes WHERE node = '$first'";
	my ($before, $others);

	$before = $host->safe_psql('postgres', $of_first);
	$others = $host->safe_psql('postgres', "SELECT granted, stats_reset FROM redlock_stats");
	$host->safe_psql('postgres', "SELECT redlock_stat_reset('resources')");
	$host->stop;
	$host->append_conf('postgresql.conf', redlock_conf(nodes => [ reverse @nodes ]));
	started();
	is($host->safe_psql('postgres', $of_first), $before, 'a node at another place of the list has its own counts');
	is($host->safe_psql('postgres', 'SELECT granted, stats_reset FROM redlock_stats'), $others, 'the counters are kept');
	is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_stat_resources'), 0, 'the reset rows are not there again');
}

# ---- a start without a broker that knows the nodes ----

{
	my $before = $host->safe_psql('postgres', 'SELECT sum(commands) FROM redlock_stat_nodes');

	$host->append_conf('postgresql.conf', "redlock.nodes = ''");
	$host->restart;
	is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_stat_nodes'), 0, 'no nodes');
	$host->append_conf('postgresql.conf', redlock_conf(nodes => \@nodes));
	$host->stop;
	started();
	is($host->safe_psql('postgres', 'SELECT sum(commands) FROM redlock_stat_nodes'), $before,
		'the counts wait for the node to be listed again');
}

# ---- files that are not usable ----

my $good;
sub stop_with_file
{
	$s = session($host);
	$s->query("SELECT redlock_acquire('again', scope => 'session')");
	$s->quit;
	settled();
	$host->stop;
	$good = slurp_file($file);
	return;
}

sub write_file
{
	my ($bytes) = @_;

	open my $out, '>:raw', $file or die "$file: $!";
	print $out $bytes;
	close $out or die "$file: $!";
	return;
}

my $damaged = 'The file is damaged.';
my $foreign = 'Another version of redlock_pg has written the file.';
foreach (
	[ 'a changed byte', $damaged, sub { my $b = $good; substr($b, length($b) / 2, 1) ^= "\x01"; $b } ],
	[ 'a lost end', $damaged, sub { substr $good, 0, -1 } ],
	[ 'a longer file', $damaged, sub { $good . "\0" } ],
	[ 'an empty file', $damaged, sub { '' } ],
	[ 'another file', $damaged, sub { 'x' x 2_000_000 } ],
	[ 'impossible numbers', $damaged, sub { my $b = $good; substr($b, 20, 8) = "\xff" x 8; $b } ],
	[ 'another layout', $foreign, sub { my $b = $good; substr($b, 4, 4) = pack 'L', 2; $b } ],
	[ 'rows of another size', $foreign, sub { my $b = $good; substr($b, 16, 4) = pack 'L', 8; $b } ])
{
	my ($what, $detail, $bytes) = @$_;
	my $from;

	stop_with_file();
	write_file($bytes->());
	$from = -s $host->logfile;
	started();
	like(slurp_file($host->logfile, $from),
		qr/LOG:  redlock statistics file "pg_stat\/redlock_pg.stat" is not used\n.*DETAIL:  \Q$detail\E/, "$what: the log tells");
	is($host->safe_psql('postgres', $counts), '0|0|', 'and the statistics begin at zero');
}

# A directory in the place of the file: the stop can't write the file, and the start can't read it.
{
	my $from = -s $host->logfile;

	$s = session($host);
	$s->query("SELECT redlock_acquire('again', scope => 'session')");
	$s->quit;
	settled();
	mkdir $file or die "$file: $!";
	append_to_file("$file/file", 'x');
	$host->stop;
	like(slurp_file($host->logfile, $from), qr/LOG:  could not (?:open|rename) file "pg_stat\/redlock_pg.stat/, 'the stop tells');
	$host->start;
	wait_nodes_ready($host, 3);
	like(slurp_file($host->logfile, $from), qr/LOG:  redlock statistics file .* is not used/, 'the start tells');
	is($host->safe_psql('postgres', $counts), '0|0|', 'and goes on');
	unlink "$file/file";
	rmdir $file or die "$file: $!";
}

# ---- crashes ----

stop_with_file();
started();
isnt($host->safe_psql('postgres', $counts), '0|0|', 'there is something to lose');
$host->stop('immediate');
ok(!-e $file, 'no file after an immediate stop');
started();
is($host->safe_psql('postgres', $counts), '0|0|', 'the statistics begin at zero');
is($host->safe_psql('postgres', 'SELECT stats_reset > pg_postmaster_start_time() - interval \'1 min\' FROM redlock_stats'), 't',
	'at the start');

stop_with_file();
$host->append_conf('postgresql.conf', 'restart_after_crash = on');
started();
{
	my $backend = session($host);

	kill 'KILL', $backend->query('SELECT pg_backend_pid()');
	$host->poll_query_until('postgres', 'SELECT count(*) = 3 FROM redlock_nodes WHERE state = \'ready\'');
	is($host->safe_psql('postgres', $counts), '0|0|', 'a crash of a session ends the statistics');
}

# ---- a file that can't be removed ----

stop_with_file();
chmod 0500, dirname($file);
$host->start;
is($host->safe_psql('postgres', $counts), '0|0|', 'a file that stays is not used');
like(slurp_file($host->logfile), qr/is not used\n.*DETAIL:  The file can't be removed\./, 'the log has the reason');
$host->stop('immediate');
chmod 0700, dirname($file);
unlink $file;
started();

# ---- a standby ----

$host->backup('backup');
ok(!-e $host->backup_dir . '/backup/pg_stat/redlock_pg.stat', 'a backup has no file');
my $primary = $host;
$host = PostgreSQL::Test::Cluster->new('standby');
$host->init_from_backup($primary, 'backup', has_streaming => 1);
$file = $host->data_dir . '/pg_stat/redlock_pg.stat';
started();
$s = session($host);
$s->query("SELECT redlock_acquire('reporting', scope => 'session'), redlock_release('reporting')");
$s->quit;
settled();
{
	my $before = past();

	$host->stop;
	ok(-e $file, 'a standby writes the file');
	started();
	is(past(), $before, 'and reads it');
}
$host->stop('immediate');
started();
is($host->safe_psql('postgres', $counts), '0|0|', 'an immediate stop ends the statistics of a standby');

done_testing();
