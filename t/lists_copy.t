# A copy of a host's files, made during a change of nodes, has the file with the two lists of the
# host, and settings with nodes of its own.
#
# Protects from: a copy taking locks at the nodes of the copied host, against the settings of the
# copy; a copy unable to leave the two lists; a server forgetting two lists of its own.

use strict;
use warnings;

use File::Copy;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my @old = redis_nodes(3);
my @new = redis_nodes(3, password => 'S3cr3t');
my @own = redis_nodes(3);
my $host = redlock_cluster('host', nodes => \@old);
my $copy = redlock_cluster('copy', nodes => \@own);
my $file = '/pg_stat_tmp/redlock_pg.lists';

# Restarts the copy with the file of the host.
sub restart_with_file
{
	$copy->stop;
	copy($host->data_dir . $file, $copy->data_dir . $file) or die "copy: $!";
	$copy->start;
	return;
}

sub try_on_copy { return psql_result($copy, "SELECT redlock_try('job')"); }

# Checks that the copy has no list in force.
sub takes_none
{
	my ($what) = @_;
	my $result;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until(sub { ($result = try_on_copy())->{state} eq '55000' && $result->{message} =~ /no list of nodes is in force/ },
		"$what: the copy takes no lock")
	  or diag($result->{message});
	is($copy->safe_psql('postgres', 'SELECT count(*) FROM redlock_nodes'), '0', "$what: and uses no node");
	return;
}

set_node_lists($host, \@old, \@new);
wait_until(sub { -e $host->data_dir . $file }, 'the host has two lists');
wait_nodes_ready($host, 6);

restart_with_file();
takes_none('after the start');
my $addresses = join ', ', map { quotemeta $_->address } @old, @new;
like(slurp_file($copy->logfile),
	qr/WARNING:  redlock\.nodes is not in force, since file "pg_stat_tmp\/redlock_pg\.lists" has other nodes\n.*DETAIL:  The file has the two lists of nodes [^\n]*: $addresses\.\n.*HINT:  If this server is a copy of another server, delete the file, and reload\./,
	'the log names the file, its nodes, and the remedy');
unlike(slurp_file($copy->logfile), qr/S3cr3t/, 'and no password');
is($copy->safe_psql('postgres', "SELECT severity || ': ' || finding FROM redlock_diagnose() WHERE subject = 'lists of nodes' AND severity <> 'ok'"),
	'error: No list of nodes is in force, so no lock can be acquired.', 'redlock_diagnose has the fault');
is($host->safe_psql('postgres', 'SELECT count(*) FROM redlock_hosts'), '1', 'the nodes of the host know no other host');
replace_broker($copy);
takes_none('the next broker');
$copy->reload;
takes_none('after a reload');

unlink $copy->data_dir . $file or die;
$copy->reload;
wait_nodes_ready($copy, 3);
is(try_on_copy()->{out}, 't', 'without the file the copy takes locks at its own nodes');

restart_with_file();
takes_none('the file is back');
set_node_lists($copy, \@old, \@new);
wait_nodes_ready($copy, 6);
is(try_on_copy()->{out}, 't', 'with the lists of the file the copy takes locks at the nodes of the file');

set_node_lists($copy, \@own, []);
$copy->append_conf('postgresql.conf', "redlock.on_disagreement = 'warn'");
restart_with_file();
wait_nodes_ready($copy, 3);
is(try_on_copy()->{out}, 't', 'redlock.on_disagreement = warn prefers the settings to the file');

done_testing();
