# Nodes that speak the Redis protocol, but answer wrongly, with errors, or with lies.  A minority
# disturbs nothing.  A majority causes an error that names each node and its fault.
#
# Protects from: a broker failing, hanging, looping or growing without limit because of a node's
# answers (invariant 15); a call without an end, or leaving keys at the good nodes (invariants 7
# and 11); control characters of strangers on a terminal.
#
# HostileRounds has the trials, and t/nodes_hostile.t tests nodes that do not speak the protocol.

use strict;
use warnings;

use HostileRounds;
use RedlockTest;
use Test::More;

# commands of the marker, and of the greeting
my $marker   = '^(GET|EVAL other)';
my $greeting = '^(INFO|PING)';

my $ugly_line = '\x01\x1b[31m\x07\x7f\x9b\xe2\x80\xae\xc3( %s%n%d \ \'; --';
my $ugly      = '\0' . $ugly_line;

my $odd_type   = qr/unexpected type/;
my $odd_answer = qr/unexpected type|out of all bounds/;

begin_rounds();

# ---- wrong answers ----

hostile_round('wrong types',
	{
		rules => [
			[
				$script, 'say', '+OK\r\n', '$-1\r\n', '*-1\r\n', '*0\r\n', '$0\r\n\r\n',
				'*2\r\n$1\r\na\r\n:1\r\n', '*3\r\n:1\r\n*1\r\n:1\r\n$-1\r\n', '*1\r\n+OK\r\n', '*1\r\n$-1\r\n',
				'*1\r\n*2\r\n$1\r\na\r\n:1\r\n', '*1\r\n*1\r\n$16\r\n1234567890123456\r\n'
			]
		],
		reason => $odd_type,
		steady => 1
	});
hostile_round('yes',
	{ rules => [ [ $script, 'say', '*1\r\n:1\r\n' ] ], reason => $odd_answer },
	{ rules => [ [ $script, 'say', '*1\r\n$2\r\n-5\r\n' ] ], reason => $odd_answer },
	{ rules => [ [ $script, 'say', '*1\r\n$20\r\n99999999999999999999\r\n' ] ], reason => $odd_answer });
hostile_round('errors 1',
	{ rules => [ [ $script, 'say', '-MOVED 3999 127.0.0.1:6381\r\n' ] ], reason => qr/^MOVED/ },
	{ rules => [ [ $script, 'say', '-LOADING Redis is loading the dataset in memory\r\n' ] ], reason => qr/^LOADING/ },
	{ rules => [ [ $script, 'say', '-READONLY You can\'t write against a read only replica.\r\n' ] ], reason => qr/^READONLY/ });
hostile_round('errors 2',
	{ rules => [ [ $script, 'say', '-OOM command not allowed\r\n' ] ], reason => qr/^OOM/ },
	{ rules => [ [ $script, 'say', '-MISCONF Redis is configured to save RDB snapshots\r\n' ] ], reason => qr/^MISCONF/ },
	{ rules => [ [ $script, 'say', '-BUSY Redis is busy running a script\r\n' ] ], reason => qr/^BUSY/ });
hostile_round('errors 3',
	{ rules => [ [ $script, 'say', '-NOAUTH Authentication required.\r\n' ] ], reason => qr/^NOAUTH/ },
	{ rules => [ [ $script, 'say', '-NOPERM this user has no permissions\r\n' ] ], reason => qr/^NOPERM/ },
	{ rules => [ [ $script, 'say', '-WRONGTYPE Operation against a key\r\n' ] ], reason => qr/^WRONGTYPE/ });
hostile_round('errors 4',
	{ rules => [ [ $script, 'say', '-CLUSTERDOWN The cluster is down\r\n' ] ], reason => qr/^CLUSTERDOWN/ },
	{ rules => [ [ $script, 'say', '-NOSCRIPT No matching script.\r\n' ] ], reason => qr/^NOSCRIPT/ },
	{ rules => [ [ $script, 'say', "-ERR $ugly\\r\\n" ] ], reason => qr/^ERR / });
hostile_round('no script for ever',
	{ rules => [ [ $script, 'say', '-NOSCRIPT No matching script.\r\n' ] ], reason => qr/^NOSCRIPT/ });

# The broker must not write an impossible value of one node to other nodes.
hostile_round('a counter out of all bounds',
	{
		rules  => [ [ $script, 'say', '*1\r\n$16\r\n9007199254740991\r\n' ] ],
		reason => $odd_answer
	});
hostile_round('a counter of old',
	{ rules => [ [ $script, 'say', '*1\r\n$4\r\n1000\r\n' ] ], reason => $odd_answer, votes => 1 });
hostile_round('no for ever',
	{
		rules  => [ [ $script, 'say', '*1\r\n*2\r\n:60000\r\n$7\r\nnobody!\r\n' ] ],
		reason => qr//,
		votes  => 1
	},
	{
		rules  => [ [ $script, 'say', '*1\r\n*2\r\n:9223372036854775807\r\n$1\r\n\0\r\n' ] ],
		reason => qr//
	},
	{
		rules  => [ [ $script, 'say', '*1\r\n*2\r\n:-9223372036854775808\r\n$0\r\n\r\n' ] ],
		reason => qr//
	});

# ---- refused at the greeting ----

my $again = [ '^NOW', 'close' ];
hostile_round('refused 1',
	{ rules => [ $again, [ '^INFO replication', 'edit', 'role:master', 'role:slave' ] ], reason => qr/it is a replica/ },
	{ rules => [ $again, [ $greeting, 'say', "-LOADING $ugly\\r\\n" ] ], reason => qr/^LOADING/ },
	{ rules => [ $again, [ $greeting, 'say', "-NOAUTH $ugly\\r\\n" ] ], reason => qr/^NOAUTH/ });
hostile_round('refused 2',
	{ rules => [ $again, [ $greeting, 'say', '*0\r\n' ] ], reason => qr/has no run_id/ },
	{ rules => [ $again, [ $marker, 'say', "-WRONGTYPE $ugly\\r\\n" ] ], reason => qr/^WRONGTYPE/ },
	{ rules => [ $again, [ '^SCRIPT', 'say', '$3\r\nabc\r\n' ] ], reason => qr/did not load a script/ });
hostile_round('refused 3',
	{ rules => [ $again, [ '^INFO server', 'edit', '_mode:standalone', "_mode:$ugly_line" ] ], reason => qr/it runs in .* mode/ },
	{ rules => [ $again, [ '^INFO server', 'edit', 'run_id:', 'run_id:\0' ] ], reason => qr/has no run_id|no uptime/ },
	{ rules => [ $again, [ '^INFO server', 'edit', 'uptime_in_seconds', 'uptime' ] ], reason => qr/no uptime/ });

end_rounds();
done_testing();
