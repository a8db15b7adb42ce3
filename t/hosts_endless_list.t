# A node with an endless list of hosts.
#
# Protects from: a view never answering, since the node always has another page; a broker's memory
# growing with each page; a remedy for a fault other than the cause of a missing list.
#
# The longest allowed list, of hosts with different settings, needs more than half of this test's
# memory limit.

use strict;
use warnings;

use HostileNode;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $limit_mb = $ENV{ASAN_OPTIONS} ? 600 : 200;

my @redis = redis_nodes(3);
my $hostile = HostileNode->new($redis[2]);
my $host = redlock_cluster('a', nodes => [ @redis[ 0, 1 ], $hostile ]);
my $s = session($host);
my $broker = broker_pid($host);
my $before_mb = peak_mb();

sub peak_mb { return slurp_file("/proc/$broker/status") =~ /^VmHWM:\s+(\d+) kB/m ? int($1 / 1024) : die; }

sub grown_mb { return peak_mb() - $before_mb; }

# Returns a rule's text for these bytes; a "#" becomes 15 digits.
sub text
{
	my ($bytes) = @_;
	my $length = length($bytes) + 14 * ($bytes =~ tr/#//);

	return "\$$length\\r\\n" . ($bytes =~ s/\0/\\0/gr) . '\r\n';
}

# Returns a page of hosts with these ids, each with the longest settings.  The next page begins
# after a later id.
sub page
{
	my (@ids) = @_;
	my $records = '';

	foreach my $i (0 .. $#ids)
	{
		my $facts = join("\0", 'evil', '0.2.0', '15', 0, 1, 1) . "\0";
		my $config = "p\0$i #" . 'x' x 5980 . "\0";

		$records .= join("\0", $ids[$i], 1, length $facts, $facts . ($i + 1), 6000, $config);
	}
	return '*2\r\n' . text('#') . text($records);
}

sub ask { $s->send("SELECT string_agg(name, ' ' ORDER BY name) FROM redlock_hosts"); }

my %list = (
	'no hosts' => page(),
	'one host with ever new settings' => page(('00000000000000aa') x 5),
	'ever new hosts' => page(map { "#$_" } 1 .. 5));

foreach my $what (sort keys %list)
{
	my $counted = $hostile->counted;

	$hostile->obey([ '^EVAL loaded', 'count', $list{$what} ]);
	ask();
	wait_until(
		sub {
			if ($s->done && $hostile->counted == $counted)
			{
				# the rule has come too late
				$s->result;
				ask();
			}
			return $s->done || grown_mb() > $limit_mb;
		},
		"$what: the view is answered, or the broker has grown");
	my $answered = $s->done;
	cmp_ok(grown_mb(), '<', $limit_mb, "$what: the memory of the broker does not grow without end");
	ok($answered, "$what: the view is answered");
	$hostile->obey;
	my $result = $s->result;
	like("$result->{state} $result->{out}", qr/^(08006 | a\b)/, "$what: with the hosts of the other nodes, or not at all");
	note "$what: the broker has grown by " . grown_mb() . ' MB';
}

# ---- no list: the reason and the remedy ----

sub finding { return $s->query("SELECT finding FROM redlock_diagnose() WHERE subject = 'hosts'"); }

my $segments = $host->data_dir . '/pg_dynshmem';
chmod 0500, $segments or die "chmod: $!";
wait_until(sub { finding() =~ /not compared: the broker has no shared memory for the list/ }, 'redlock_diagnose: no shared memory');
is($s->run('SELECT count(*) FROM redlock_hosts')->{state}, '53200', 'and the view says so');
chmod 0700, $segments or die "chmod: $!";
wait_until(sub { finding() =~ /^Hosts at the nodes: / }, 'with memory there is a list again');

my $too_long = HostileNode->new($redis[1]);
$host->append_conf('postgresql.conf', "redlock.nodes = '" . join(', ', map { $_->url } $redis[0], $too_long, $hostile) . "'");
$host->reload;
wait_until(sub { $s->query("SELECT count(*) FROM redlock_nodes WHERE state = 'ready' AND list = 'now'") == 3 }, 'a second hostile node');
$_->obey([ '^EVAL loaded', 'count', $list{'ever new hosts'} ]) foreach $hostile, $too_long;
wait_until(sub { finding() =~ /not compared: the nodes list more than 10000 hosts/ }, 'redlock_diagnose: too many hosts');
$_->obey foreach $hostile, $too_long;

is(broker_pid($host), $broker, 'the broker lives');
is($s->query("SELECT redlock_try('job', scope => 'session')"), 't', 'and serves');
wait_until(sub { psql_result($host, "SELECT string_agg(name || nodes, ' ') FROM redlock_hosts")->{out} eq 'a3' }, 'the list is in order again');
$s->quit;

done_testing();
