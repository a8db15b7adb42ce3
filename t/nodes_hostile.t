# Nodes that answer garbage, nothing, a byte a second, or a gigabyte.  A minority disturbs
# nothing.  A majority causes an error that names each node and its fault.
#
# Protects from: a broker failing, hanging, looping or growing without limit because of a node's
# bytes (invariant 15); a call without an end, or leaving keys at the good nodes (invariants 7 and
# 11); control characters of strangers on a terminal.
#
# HostileRounds has the trials, and t/nodes_wrong_answers.t tests nodes that lie.

use strict;
use warnings;

use HostileRounds;
use RedlockTest;
use Test::More;

# begins with a byte that starts no reply
my $garbage = join '', map { sprintf '\x%02x', $_ * 37 % 256 } 2 .. 255;

my $no_answer = qr/no answer within 500 ms/;
my $no_redis  = qr/does not speak the Redis protocol/;
my $strange   = qr/reply of an unexpected type/;
my $too_much  = qr/more than any reply could have|without being asked/;

begin_rounds();

# ---- silence ----

hostile_round('accepts and never answers',
	{ rules => [ [ '.', 'hang' ] ], reason => $no_answer, steady => 1, slow => 1 });
hostile_round('greets and never answers',
	{ rules => [ [ $script, 'hang' ] ], reason => $no_answer, steady => 1, slow => 1 });
hostile_round('drips',
	{ rules => [ [ '.', 'drip', '+OK\r\n' ] ], reason => $no_answer, steady => 1 });
hostile_round('drips its answers',
	{
		rules  => [ [ $script, 'drip', '*1\r\n$16\r\n1234567890123456\r\n' ] ],
		reason => $no_answer,
		steady => 1
	});
hostile_round('closes at once',
	{ rules => [ [ '.', 'close' ] ], reason => qr/closed the connection|reset by peer/ });
hostile_round('closes when asked',
	{ rules => [ [ $script, 'close' ] ], reason => qr/closed the connection|reset by peer/ });

# ---- noise ----

hostile_round('garbage', { rules => [ [ '.', 'say', $garbage ] ], reason => $no_redis });
hostile_round('garbage after the greeting',
	{ rules => [ [ $script, 'say', $garbage ] ], reason => $no_redis });
# hiredis 1.0 and later also accept RESP3 unasked: a map of endless length, a whole map, a push.
hostile_round('garbage of RESP3',
	{ rules => [ [ '.',     'say', "%$garbage" ] ],           reason => qr/$no_redis|$no_answer/ },
	{ rules => [ [ $script, 'say', '%1\r\n+a\r\n:1\r\n' ] ], reason => qr/$no_redis|$strange/ },
	{ rules => [ [ $script, 'say', '>2\r\n+a\r\n:1\r\n' ] ], reason => qr/$no_redis|$strange/ });
hostile_round('unasked answers',
	{ rules => [ [ $script, 'add', '+OK\r\n' ] ], reason => qr/without being asked/, votes => 1 },
	{
		rules => [ [ '^NOW', 'say', ':1\r\n' ], [ $script, 'add', '$1\r\n1\r\n' ] ],
		reason => qr/without being asked/
	},
	{ rules => [ [ $script, 'add', '*0\r\n' ] ], reason => qr/without being asked/ });

# ---- a gigabyte ----

hostile_round('a gigabyte in one string',
	{ rules => [ [ '.', 'flood', '$1073741824\r\n', 'x' ] ], reason => $too_much });
hostile_round('a gigabyte for an answer',
	{ rules => [ [ $script, 'flood', '$1073741824\r\n', 'x' ] ], reason => $too_much },
	{ rules => [ [ $script, 'flood', '', ':1\r\n' ] ], reason => $too_much },
	{ rules => [ [ $script, 'flood', '-', 'x' ] ], reason => $too_much });
hostile_round('a gigabyte of elements',
	{
		rules  => [ [ $script, 'flood', '*1000000\r\n', ':1\r\n' ] ],
		reason => qr/$no_answer|$too_much|$no_redis/
	});
hostile_round('a gigabyte of elements unasked',
	{
		rules => [ [ '^NOW', 'flood', '*1000000000\r\n', ':1\r\n' ], [ $script, 'close' ] ],
		reason => qr/$no_answer|$too_much|$no_redis|closed the connection|reset by peer/
	});
hostile_round('arrays in arrays',
	{ rules => [ [ $script, 'flood', '', '*1\r\n' ] ], reason => qr/$no_answer|$too_much|$no_redis/ });

end_rounds();
done_testing();
