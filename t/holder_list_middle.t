# redlock_holders: events in the middle of a long list, and odd keys.
#
# Protects from: a node's failure in the middle taking locks out of the list, or delaying each step;
# a list cut without an error; a cancelled list blocking the next list; a list waiting for ever
# after the end of its broker; ended locks staying in the list; a row that differs from
# redlock_holder; answers too large for one step.

use strict;
use warnings;

use RedlockTest;
use Test::More;

use constant LOCKS => 6000;

my @nodes = redis_nodes(5);
my $host  = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '60s'\nredlock.node_timeout = '1s'");
my ($session, $other) = map { session($host) } 1, 2;
my $held = ':000000001:00c0ffee00c0ffee';

sub at_all_nodes
{
	my @command = @_;
	$_->cli(@command) foreach @nodes;
	return;
}

# Begins a list, and waits until the list reads locks, after its walk over the keys of the last
# node.
sub begin_list
{
	$nodes[4]->cli('CONFIG', 'RESETSTAT');
	$session->send("SELECT count(*), count(DISTINCT resource), string_agg(DISTINCT state, ' ') FROM redlock_holders('big:')");
	wait_until(sub { $nodes[4]->cli('INFO', 'commandstats') =~ /cmdstat_pttl:/ }, 'a list reads locks');
	return;
}

sub list_all { return $other->query("SELECT count(*), count(DISTINCT resource), string_agg(DISTINCT state, ' '), min(nodes) FROM redlock_holders('big:')"); }

at_all_nodes('EVAL', "for i = 1, ARGV[1] do redis.call('SET', 'redlock:big:' .. i, string.format('%032x', i) .. ARGV[2] .. ' host=\"h\" pid=7', 'PX', 900000) end",
	0, LOCKS, $held);
is(list_all(), LOCKS . '|' . LOCKS . '|held|5', 'all locks');

# ---- nodes ----

begin_list();
$nodes[$_]->pause foreach 3, 4;
is($session->result->{out}, LOCKS . '|' . LOCKS . '|held', 'two of five nodes fail in the middle');
$nodes[$_]->resume foreach 3, 4;
wait_nodes_ready($host, 5);

begin_list();
$nodes[$_]->pause foreach 2 .. 4;
my $result = $session->result;
is($result->{state}, '08006', 'three fail');
like($result->{detail}, qr/^The last failure: \w/, 'the error tells why');
$nodes[$_]->resume foreach 2 .. 4;
wait_nodes_ready($host, 5);

# ---- the session, the broker ----

begin_list();
$other->query('SELECT pg_cancel_backend(' . $session->pid . ')');
is($session->result->{state}, '57014', 'a list is cancelled');
is(list_all(), LOCKS . '|' . LOCKS . '|held|5', 'the next list begins');

begin_list();
replace_broker($host);
like($session->result->{state}, qr/^(08006|)$/, 'the broker ends in the middle');
wait_nodes_ready($host, 5);
is(list_all(), LOCKS . '|' . LOCKS . '|held|5', 'its next broker lists');

# ---- locks ----

begin_list();
at_all_nodes('EVAL', "for i = 1, ARGV[1] / 2 do redis.call('DEL', 'redlock:big:' .. i) end", 0, LOCKS);
like($session->result->{out}, qr/^(\d+)\|\1\|(free )?held$/, 'locks end meanwhile');
is(list_all(), LOCKS / 2 . '|' . LOCKS / 2 . '|held|5', 'and are out of the list');

# ---- odd keys ----

# the locks of many readers need several steps
my $n = 0;
at_all_nodes('EVAL', "redis.call('SET', KEYS[1], (string.gsub(ARGV[1], '%%0', '\\0')))", 1, 'redlock:odd:' . $n++, s/\0/%0/gr)
  foreach 'plain', '', "a\0b\0" . 'c' x 300, "\xff\xfe", '0' x 32 . ':000000001:00c0ffee00c0ffe', "1\0001\0000\0000\0000\000",
  map { $_ x 32 . $held . { e => ' kept host="h"', f => '~host="h" pid=9', d => ' permits=3 host="h"' }->{$_} } qw(d e f);
at_all_nodes('RPUSH', 'redlock:odd:list', 'x');
at_all_nodes('HSET', 'redlock:odd:hash', 'field', 'x');
at_all_nodes('HSET', 'redlock:odd:redisson', '01234567-89ab-cdef-0123-456789abcdef:1', 1);
at_all_nodes('SET', 'redlock:odd:' . 'n' x 251, 'plain', 'PX', 900000);
at_all_nodes('SET', 'redlock:odd:life', 'plain', 'PX', 900000000000000);
$_->cli('SET', 'redlock:odd:two', 'plain') foreach @nodes[ 0, 3 ];
at_all_nodes('EVAL', <<'LUA', 0, 'a' x 32 . "$held= host=\"h\"", (time + 3600) * 1000);
redis.call('SET', 'redlock:odd:stranger', ARGV[1])
redis.call('HSET', 'redlock:odd:stranger\0readers', 1, '1:c0ffee:1:' .. ARGV[2], 2, '1:' .. string.rep('C', 16) .. ':1:' .. ARGV[2])
for i = 1, 30 do
	redis.call('SET', 'redlock:odd:readers' .. i, ARGV[1])
	for j = 1, 70 do
		redis.call('HSET', 'redlock:odd:readers' .. i .. '\0readers', j, string.format('1:%016x:1:%s', j, ARGV[2]))
	end
end
LUA
is($other->query("SELECT count(*) FROM redlock_holders('odd:')"), 45, 'a row for each key but that of a lock with permits');
my @columns = qw(mode host cluster_name database role pid detached host_id may_be_idle permits held_by nodes of_nodes);
is($other->query(<<SQL), 'odd:two|free|free|2|2', 'each row says what redlock_holder says; that of a minority says more');
SELECT l.resource, l.state, o.state, l.nodes, o.nodes FROM redlock_holders('odd:') l, redlock_holder(l.resource) o
 WHERE (l.state, @{[ join ', ', map { "l.$_" } @columns ]}) IS DISTINCT FROM (o.state, @{[ join ', ', map { "o.$_" } @columns ]})
    OR (l.ttl IS NULL) <> (o.ttl IS NULL) OR cardinality(l.reader_hosts) <> cardinality(o.reader_hosts)
SQL
is($other->query("SELECT min(cardinality(reader_hosts)) FROM redlock_holders('odd:readers')"), 64, 'with the hosts of readers');

$_->quit foreach $session, $other;
done_testing();
