#!/usr/bin/perl
#
# mutants.pl: break a file of src/protocol or src/driver, or the simulated host in one place
# at a time, and check that the simulator finds the mutant.
#
#	mutants.pl [--jobs N] [--seconds N] [--cc "COMMAND"] [NAME ...]
#
# A mutant with "program: crowd", deadlock, together, permits or changes runs the program of this name;
# all others run the simulator.
#
# Reads mutants.txt, and works with copies in a temporary directory.  Mutants are compiled without
# assertions, so the invariants must find them.  Writes TAP: one test for each mutant.
use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use Getopt::Long;
use Time::HiRes 'time';

use lib dirname(abs_path($0));
use Mutants;

# a limit for slow machines: only a surviving mutant uses all of it
my ($jobs, $seconds, $cc) = (2, 600, $ENV{CC} || 'gcc');
GetOptions('jobs=i' => \$jobs, 'seconds=i' => \$seconds, 'cc=s' => \$cc) or exit 2;

chdir dirname(abs_path($0)) . '/../..' or die $!;
my @flags = qw(-std=c99 -O2 -w -DNDEBUG -Itest/sim -Itest/unit -Isrc); # node.h exists twice
my $dir = tempdir(CLEANUP => 1);

my @mutants = read_mutants('test/sim/mutants.txt');
if (@ARGV)
{
	my %wanted = map { $_ => 1 } @ARGV;
	@mutants = grep { $wanted{ $_->{name} } } @mutants;
}
die "no such mutant\n" unless @mutants;

my %sources = map { $_ => [ sources_of("test/sim/$_") ] } map { program($_) } @mutants;
my %compiled = map { $_ => 1 } map { @$_ } values %sources;
foreach my $source (sort keys %compiled)
{
	compile($source, object($source)) or die "$source does not compile\n";
}

my $killed = run_mutants($jobs, \@mutants, \&try_mutant, \&report);
finish(sprintf '%d mutants, %d killed', scalar @mutants, $killed);

sub program { return $_[0]{program} // 'sim'; }

sub object
{
	my ($source) = @_;
	return "$dir/" . ($source =~ tr{/}{-}r) . '.o';
}

sub compile
{
	my ($from, $to) = @_;
	return system(split(' ', $cc), @flags, '-c', '-o', $to, $from) == 0;
}

# Builds and runs a mutant.  Returns "seed N invariant N seconds N", or why no invariant was violated.
sub try_mutant
{
	my ($mutant) = @_;
	my ($source, $text) = eval { edited($mutant) } or return $@ =~ s/\n\z//r;
	my $name = "$dir/$mutant->{name}";
	my $began = time();

	write_file("$name.c", $text);
	compile("$name.c", "$name.o") or return "it does not compile";
	my @objects = map { $_ eq $source ? "$name.o" : object($_) } @{ $sources{ program($mutant) } };
	system(split(' ', $cc), '-o', $name, @objects) == 0 or return "it does not link";

	my $faults = $mutant->{faults} ? "--faults $mutant->{faults}" : '';
	# the world must find the mutant, not the laws of the core (17)
	my $other = program($mutant) ne 'sim';
	my $options = $other ? '' : "--seconds $seconds --min-faults 0 --skip 17 $faults";
	$options .= " --from $mutant->{from}" if $mutant->{from};
	my $said = until_violation("$name $options");
	my $taken = sprintf('%.1f', time() - $began);
	return "seed $1 invariant $2 seconds $taken"
	  if $said =~ /^# seed (\d+) violates invariant (\d+):/m;
	return "it survives" if $said =~ /^\d+ passed, 0 failed/m or $other;
	return "it fails otherwise: " . substr($said, -300);
}

# Runs a program to its end, or to the first violation.  Returns the program's output.
sub until_violation
{
	my ($command) = @_;
	my $said = '';
	my $pid = open(my $out, '-|', "exec $command 2>&1") or die "$command: $!\n";

	while (my $line = <$out>)
	{
		$said .= $line;
		next unless $line =~ /^# seed \d+ violates invariant \d+:/;
		kill 'KILL', $pid;
		last;
	}
	close($out);
	return $said;
}

sub report
{
	my ($mutant, $result) = @_;
	my ($seed, $invariant, $taken) = $result =~ /^seed (\d+) invariant (\d+) seconds (\S+)$/;
	my $killed = defined $invariant && grep { $_ == $invariant } split(' ', $mutant->{kills});

	$result = sprintf('invariant %2d, seed %6d, %5.1f s', $invariant, $seed, $taken) if defined $seed;
	check($killed, sprintf('%-26s %s', $mutant->{name}, $result));
	print "# $mutant->{what}\n";
	print "# found sooner with from: $seed\n" if defined $taken and $taken > 40 and $seed > ($mutant->{from} // 0);
	print "# expected of it: $mutant->{kills}\n" if defined $seed and not $killed;
	return $killed;
}
