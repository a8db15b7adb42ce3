# A host reads the entries of other hosts at a node: of a dead host and a live host with the same
# settings, and of more configurations than the node's answer has room for.
#
# Protects from: a dead host named in place of a live host, which stays unknown; a
# conflict never ending since a node has too many entries for its answer, or ending when the answer
# leaves the conflict's entry out.
#
# This test writes the entries of the other hosts.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my $HOSTS = "redlock:\\0hosts";

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes);

# Runs a script at the nodes.  The script can use "now", "own" (the words of the host's settings),
# "other_nodes()" (the same words with other nodes), and "enter", which writes the entry of a host.
sub write_at
{
	my ($script, @on) = @_;

	foreach my $node (@on)
	{
		my $reply = $node->cli('EVAL', <<LUA, 0);
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own_id = '${\$host->safe_psql('postgres', 'SELECT host_id FROM redlock_hosts')}'
local facts = redis.call('HGET', '$HOSTS\\0facts', own_id)
local own = {}
for word in string.gmatch(redis.call('GET', '$HOSTS\\0config:' .. string.sub(facts, 1, 40)), '([^%z]*)%z') do
	own[#own + 1] = word
end
local function enter(id, seen, words)
	local text = table.concat(words, '\\0') .. '\\0'
	local config = redis.sha1hex(text)
	redis.call('SET', '$HOSTS\\0config:' .. config, text)
	redis.call('ZADD', '$HOSTS', seen, id)
	redis.call('HSET', '$HOSTS\\0facts', id, config .. string.sub(facts, 41))
	redis.call('ZADD', '$HOSTS\\0configs:redlock:', now, config)
	redis.call('ZADD', '$HOSTS\\0users:' .. config, seen, id)
end
local function other_nodes()
	local words = {unpack(own)}
	for node = 0, 1 do
		for word = 6, 7 do
			words[4 * node + word] = 'other' .. node
		end
	end
	return words
end
$script
return 'done'
LUA
		is($reply, "done", "entries are written") if $reply ne "done";
	}
	return;
}

sub state_of_try { return psql_result($host, "SELECT redlock_try('tried')")->{state}; }

wait_until(sub { (psql_result($host, 'SELECT nodes FROM redlock_hosts')->{out} // '') eq '3' }, 'the host is there');

# Host $dead was last seen before the nodes started; host $alive has the same settings, and beats.
my $dead = 'd' x 16;
my $alive = 'e' x 16;
my $entered = 0;
wait_until(
	sub {
		write_at("enter('$dead', now - 20000, other_nodes())", $nodes[2]) unless $entered++;
		write_at("enter('$alive', now, other_nodes())", $nodes[2]);
		return state_of_try() eq '55000';
	},
	'a host that lives and has other nodes is told of', 40);
is($nodes[2]->cli('EVAL', <<LUA, 0), '1', 'while one that died before it could tell is still in the list');
local time = redis.call('TIME')
return redis.call('ZCOUNT', '$HOSTS', time[1] * 1000 - 44000, time[1] * 1000 - 15000)
LUA

# The node has more configurations than its answer can tell.  A single host disagrees.
my $crowd = <<'LUA';
for i = 1, 20 do
	local words = {unpack(own)}
	words[6] = 'name' .. i
	enter(string.format('%016x', i), now, words)
end
LUA
wait_until(
	sub {
		write_at("enter('$alive', now, other_nodes())\n$crowd", $nodes[2]);
		return state_of_try() eq '55000';
	},
	'among many that agree', 40);

# From now on the crowd's entries are newer, so the node's answer leaves host $alive out.
my $own_id = $host->safe_psql('postgres', "SELECT host_id FROM redlock_hosts WHERE name = 'a'");
my ($beats, $beat, %states) = (0, '');
wait_until(
	sub {
		write_at($crowd, $nodes[2]);
		$states{ state_of_try() }++;
		my $last = last_beat($own_id, $nodes[2]);
		$beats++ if $last ne $beat;
		$beat = $last;
		return $beats > 3 || keys %states > 1;
	},
	'the host has been told several times of the others');
is(join(' ', keys %states), '55000', 'which does not end the conflict');

write_at(<<LUA, $nodes[2]);
for _, key in ipairs(redis.call('KEYS', '$HOSTS\\0users:*')) do
	redis.call('ZREM', key, '$alive')
end
redis.call('HDEL', '$HOSTS\\0facts', '$alive')
redis.call('ZREM', '$HOSTS', '$alive')
LUA
wait_until(sub { write_at($crowd, $nodes[2]); return state_of_try() eq '' }, 'it leaves, and they stay', 90);

done_testing();
