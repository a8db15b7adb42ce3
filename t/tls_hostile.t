# Nodes with TLS that send nothing, a byte a second, garbage, or endless records to ignore, in the
# handshake and after it.  A minority disturbs nothing.  A majority causes an error that names
# each node and its fault.
#
# Protects from: a broker waiting or looping in a handshake (invariant 15); a broker failing or
# growing because of a node's bytes; a call without an end (invariant 11).
#
# HostileRounds has the trials.

use strict;
use warnings;

use Certificates;
use HostileRounds;
use PostgreSQL::Test::Cluster;
use RedlockTest;
use Test::More;

plan skip_all => tls_is_missing() if tls_is_missing();

my $garbage = join '', map { sprintf '\x%02x', $_ * 37 % 256 } 1 .. 255;

# the head of a handshake record of 16 kB
my $head = '\x16\x03\x03\x40\x00';

# a server may send "hello" at any rate, and a client ignores it during the handshake
my $hellos = '\x16\x03\x03\x40\x00' . '\x00\x00\x00\x00' x 4096;

my $no_answer = qr/no answer within 500 ms/;
my $in_tls    = qr/no answer within 500 ms \(TLS handshake/;

begin_rounds(tls => Certificates->new('ours')->issue('node'));

# ---- silence ----

hostile_round('accepts and never answers',
	{ rules => [ [ 'CONNECT|RECORD', 'hang' ] ], reason => $in_tls, steady => 1, slow => 1 });
hostile_round('shakes hands and never answers',
	{ rules => [ [ 'RECORD 23', 'hang' ] ], reason => $no_answer, steady => 1, slow => 1 });
hostile_round('drips a handshake',
	{
		rules  => [ [ 'CONNECT|RECORD', 'drip', $head ] ],
		reason => qr/$in_tls|TLS failed/,
	});
hostile_round('closes in the handshake',
	{
		rules  => [ [ 'CONNECT|RECORD', 'close' ] ],
		reason => qr/closed the connection|reset by peer|Broken pipe/
	});
hostile_round('closes when asked',
	{ rules => [ [ 'RECORD 23', 'close' ] ], reason => qr/closed the connection|reset by peer|Broken pipe/ });

# ---- noise ----

hostile_round('garbage',
	{ rules => [ [ 'CONNECT|RECORD', 'say', $garbage ] ], reason => qr/does not speak TLS|TLS failed/ });
hostile_round('garbage after the handshake',
	{ rules => [ [ 'RECORD 23', 'say', $garbage ] ], reason => qr/TLS failed|it ended the connection/ });

# ---- a gigabyte ----

hostile_round('a gigabyte of hellos',
	{ rules => [ [ 'CONNECT|RECORD', 'flood', '', $hellos ] ], reason => qr/$in_tls|TLS failed/ });
hostile_round('a gigabyte of garbage',
	{ rules => [ [ 'CONNECT|RECORD', 'flood', $head, 'x' ] ], reason => qr/$in_tls|TLS failed/ });

end_rounds();
done_testing();
