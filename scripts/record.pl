#!/usr/bin/perl
# scripts/record.pl CHECK RESULT: write a row of test/results.md, with today's date and the commit
#
# The row of the same check is replaced.  A tree with changes is marked "-dirty", unless only
# rows and records of the soak have changed.  The line "In sum" adds up the campaigns without a
# failure, and counts the others.
use strict;
use warnings;

use FindBin qw($Bin);
use POSIX qw(strftime);

@ARGV == 2 or die "usage: $0 CHECK RESULT\n";
my ($check, $result) = @ARGV;
my $path = "$Bin/../test/results.md";
my $commit = `git -C "$Bin" describe --always 2>/dev/null` || 'unknown';
my $changes = `git -C "$Bin" status --porcelain --untracked-files=no -- :/ ':!/test/results.md' ':!/bench/soak/results' 2>/dev/null`;
my ($head, %rows) = ('');
my ($schedules, $minutes, $executions, $failed) = (0, 0, 0, 0);

open my $in, '<', $path or die "$path: $!\n";
while (<$in>)
{
	if (/^\| (?!check \|)(?!---)([^|]+?) \|/) { $rows{$1} = $_; }
	elsif (!/^In sum: /) { $head .= $_; }
}
close $in;
chomp $commit;
$commit .= '-dirty' if $changes;
$rows{$check} = sprintf "| %s | %s | %s | %s |\n", $check, $result, strftime('%Y-%m-%d', localtime), $commit;
foreach (keys %rows)
{
	if ($rows{$_} =~ /not ok|violates|fails|\b[1-9]\d* failed/)
	{
		$failed++;
		next;
	}
	$schedules += $1  if /^simulator: (\d+) schedules from seed/;
	$minutes += $1    if /^chaos: (\d+) minutes from seed/;
	$executions += $1 if /^fuzzing: (\d+) executions of each program/;
}
$head =~ s{^(?=\| check \|)}{sprintf "In sum: %s schedules of the simulator, %s minutes of chaos, %s executions of each fuzzing program. Not in the sum: runs with a failure, of which the table has %d.\n\n",
	  map({ commas($_) } $schedules, $minutes, $executions), $failed}em;
$head =~ s/\n{3,}/\n\n/g;
open my $out, '>', $path or die "$path: $!\n";
print $out $head, @rows{ sort keys %rows };
close $out;

sub commas { return scalar reverse(join(",", unpack("(A3)*", scalar reverse $_[0]))); }
