#!/usr/bin/perl
#
# fuzz.pl: give hostile bytes to the readers, by the programs NAME_fuzz of this directory
#
#	fuzz.pl [--seconds N | --runs N] [--seed N] [--jobs N] [NAME ...]
#
# Each program runs for some seconds, or for a number of executions, and begins with the inputs of
# corpus/NAME.  Without a seed each run makes other inputs.  New inputs stay in a temporary
# directory.  Writes TAP: one test for each program.
#
# After a failure the output has the input in base64:
#
#	base64 -d <<<'...' >input && test/fuzz/NAME_fuzz input
use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use Getopt::Long;
use MIME::Base64;

my $here = dirname(abs_path($0));
my ($seconds, $runs, $seed, $jobs) = (5, 0, 0, 2);
GetOptions('seconds=i' => \$seconds, 'runs=i' => \$runs, 'seed=i' => \$seed, 'jobs=i' => \$jobs) or exit 2;
my $limit = $runs ? "-runs=$runs" : "-max_total_time=$seconds";
my @names = @ARGV ? @ARGV : map { m{/(\w+)_fuzz\.c$} } sort glob "$here/*_fuzz.c";
my $dir = tempdir(CLEANUP => 1);
my (%running, %executions);
my ($test, $failed) = (0, 0);

$| = 1;
foreach my $name (@names)
{
	report(wait()) if keys %running >= $jobs;
	mkdir "$dir/$name" or die "$dir/$name: $!";
	my $pid = fork() // die "fork: $!";
	$running{$pid} = $name;
	next if $pid;
	open STDOUT, '>', "$dir/$name.log" or die $!;
	open STDERR, '>&', \*STDOUT or die $!;
	exec "$here/${name}_fuzz", $limit, "-seed=$seed", '-print_final_stats=1', '-timeout=10', '-rss_limit_mb=1024',
	  "-artifact_prefix=$dir/$name.", "$dir/$name", "$here/corpus/$name"
	  or die "${name}_fuzz: $!\n";
}
report(wait()) while %running;
print "1..$test\n";
print "# ", join(', ', map { "$_ " . commas($executions{$_}) } sort keys %executions), " executions\n";
exit($failed ? 1 : 0);

sub report
{
	my ($pid) = @_;
	my $good = $? == 0;
	my $name = delete $running{$pid} or return;
	my $log = slurp("$dir/$name.log");

	$executions{$name} = $log =~ /^stat::number_of_executed_units: (\d+)/m ? $1 : 0;
	$good = 0 if !$executions{$name};
	$test++;
	printf "%sok %d - %s: %s executions\n", $good ? '' : 'not ', $test, $name, commas($executions{$name});
	return if $good;
	$failed++;
	print map { "# $_\n" } grep { /does not hold|runtime error|ERROR:|^ +#\d+ .* in /i } split /\n/, $log;
	foreach my $input (grep { -f && !/\.log$/ } glob "$dir/$name.*")
	{
		print '# input: ', encode_base64(slurp($input), ''), "\n";
	}
	return;
}

sub slurp
{
	my ($file) = @_;

	open my $in, '<:raw', $file or return '';
	local $/;
	return <$in> // '';
}

sub commas { return scalar reverse(join(",", unpack("(A3)*", scalar reverse $_[0]))); }
