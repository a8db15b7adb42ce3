# The commands of docs/tutorial.md, run from first to last in one shell, as a reader runs them.
#
# Protects from: a failing command; a wrong output in the document.

use strict;
use warnings;

use File::Basename;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $document = slurp_file(dirname(__FILE__) . '/../docs/tutorial.md');

# The tutorial's ports may be in use here.
my %port = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } 6381 .. 6383;
my $directory = PostgreSQL::Test::Utils::tempdir_short();

# Removes differences between runs: numbers, the winner of a race, the name of the machine, and the
# order of the lines of concurrent processes.
sub comparable
{
	my ($output) = @_;

	$output =~ s/\d+/0/g;
	$output =~ s/\b(?:alpha|beta|gamma)\b/HOST/g;
	$output =~ s/host="[^"]*"/host="..."/g;
	$output =~ s/ +/ /g;
	$output =~ s/-{2,}/--/g;
	return join "\n", sort grep { /\S/ } split /\n/, $output;
}

# Each block of commands, with the output in the document.
my @step;
while ($document =~ /^```sh\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?/msg)
{
	push @step, { commands => $1, output => $2 // '' };
}
cmp_ok(scalar @step, '>', 10, 'the tutorial has steps');

my $script = join '', map { "echo '@@ $_'\n" . $step[$_]{commands} =~ s/\b(638[123])\b/$port{$1}/gr } 0 .. $#step;
my $printed = '';
my $run = IPC::Run::start(
	[ 'bash', '-e', '-c', "cd '$directory'; exec 2>&1\n$script" ],
	'<', \undef, '>', \$printed,
	IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default));
my $ended = eval { $run->finish; 1 };
diag($@) unless $ended;
ok($ended && $run->result == 0, 'every command of the tutorial succeeds') or diag($printed);

my %printed = $printed =~ /^@@ (\d+)\n(.*?)(?=^@@ |\z)/msg;
foreach my $number (0 .. $#step)
{
	my ($first) = $step[$number]{commands} =~ /(.*)/;
	is(comparable($printed{$number} // 'nothing'), comparable($step[$number]{output}), "the output of: $first");
}

# A failed step leaves servers behind.
END
{
	local $? = $?;
	foreach my $host (qw(alpha beta gamma))
	{
		my $data = "$directory/lock_tutorial/$host";
		system('pg_ctl', '-D', $data, '-m', 'immediate', '-s', 'stop') if -e "$data/postmaster.pid";
	}
	if (-d "$directory/lock_tutorial")
	{
		system("redis-cli -p $port{$_} shutdown nosave >/dev/null 2>&1") foreach 6381 .. 6383;
	}
}

done_testing();
