# Names of a host's connections in a node's list of clients.
#
# Protects from: connections without a telling name; a name refused by the node; a node without
# the command, or whose ACL forbids it, therefore refused, connected again, or shown with an
# error; an answer giving the reason for a refusal, but ignored as the answer to the name.

use strict;
use warnings;

use HostileNode;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @nodes = redis_nodes(3);
my $knows = $nodes[0]->cli('CLIENT', 'SETINFO', 'LIB-NAME', 'x') eq 'OK';
my $version = slurp_file('redlock_pg.control') =~ /default_version = '(.*)'/ ? $1 : die;

$nodes[1]->cli(qw(ACL SETUSER named on >secret ~* &* +@all -client));
my $closed = HostileNode->new($nodes[2]);

# errors of a node without the commands
$closed->obey([ '^CLIENT SET', 'say', '-ERR unknown command\r\n' ]);
my $host = redlock_cluster('a', nodes => [ $nodes[0], $nodes[1]->url =~ s{//}{//named:secret@}r, $closed ]);

# The named connections at a node: name, library, version.
sub clients
{
	my ($node) = @_;
	my @named = grep { / name=redlock_pg/ } split /\n/, $node->cli('CLIENT', 'LIST');
	return join ', ', map { join ' ', (/ name=(\S*)/)[0], (/ lib-name=(\S*)/)[0] // '', (/ lib-ver=(\S*)/)[0] // '' } @named;
}

my $library = $knows ? "redlock_pg $version" : ' ';
my $one = "redlock_pg/a $library";
like(clients($nodes[0]), qr/^\Q$one\E(, |$)/, 'the connection has a name');
is(clients($nodes[1]), '', '... unless an ACL does not allow it');

# a waiter opens the second connection
my ($holder, $waiter) = map { session($host) } 1, 2;
my $b = redlock_cluster('b', nodes => [ @nodes ]);
my $there = session($b);
$there->query("SELECT redlock_acquire('job', scope => 'session')");
$waiter->send("SELECT redlock_acquire('job', scope => 'session')");
wait_until(sub { clients($nodes[0]) =~ /\Q$one, $one\E|\Q$one\E.*\Q$one\E/ }, 'the connection for messages has the name, too');
like(clients($nodes[0]), qr{redlock_pg/b }, 'and those of another host, whose name is its own');
$there->query('SELECT redlock_release_all()');
is($waiter->result->{state}, '', 'the waiter is woken');

is($host->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'ready' AND last_error IS NULL"), '3',
	'a node that refuses the name is ready, and has no error') or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));
unlike(slurp_file($host->logfile), qr/does not let us subscribe|CLIENT|NOPERM/, 'nor is there one in the log');

# ---- a name that a node refuses ----

system_or_bail('pg_ctl', '-w', '-D', $b->data_dir, '-l', $b->logfile, '-o', q{--cluster-name='main site "é"'}, 'restart');
wait_until(sub { clients($nodes[0]) =~ m{redlock_pg/main_site_"\S+" \Q$library\E} }, 'has no blanks, and no character that a node refuses')
  or diag(clients($nodes[0]));

# ---- the first answer of a node that refuses the connection ----

my $only = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $nodes[0]->port) or die;
print $only "CONFIG SET maxclients 1\r\nCLIENT KILL TYPE normal\r\nCLIENT KILL TYPE pubsub\r\n";
wait_until(sub { $host->safe_psql('postgres', "SELECT last_error FROM redlock_nodes WHERE node = '@{[$nodes[0]->address]}'") =~ /max number of clients/ },
	'is shown as what it is') or diag($host->safe_psql('postgres', 'SELECT * FROM redlock_nodes'));

done_testing();
