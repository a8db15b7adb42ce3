#!/usr/bin/perl
#
# branches.pl: each condition of src/protocol and src/driver must be true once and false once in the
# unit tests, the simulators and conformance, unless branches.txt has the reason.
#
# A branch is a text like "file: line: condition ==> never true".  Writes TAP: one test for each branch
# that is never taken, and for each entry of branches.txt.  Needs clang with llvm-cov, which measures
# conditions; gcov numbers the jumps of the compiler.
use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use JSON::PP;

use lib dirname(abs_path($0));
use Mutants;

my %options = ('test/sim/sim' => '--schedules 10000 --jobs 2 --min-faults 0', 'test/sim/changes' => '60');

chdir dirname(abs_path($0)) . '/../..' or die $!;
my %reason = read_reasons('test/sim/branches.txt');
my $dir = abs_path(tempdir(CLEANUP => 1));
my @programs = split ' ', `make -s --eval 'programs: ; \@echo \$(UNIT_TESTS) \$(SIMULATORS) test/sim/conformance' programs`;
measure();

my ($branches, %never) = (0);
collect($_) foreach @{ exported()->{data}[0]{files} };
check($reason{$_}, $_) foreach sort keys %never;
check(0, "an entry of branches.txt fits no branch, or the branch is taken: $_") foreach grep { !$never{$_} } sort keys %reason;
finish(sprintf '%d branches, %d never taken', $branches, scalar keys %never);

# Builds all programs without assertions in a copy of the tree, and runs them.
sub measure
{
	my $cc = 'clang -std=c99 -O1 -g -w -DNDEBUG -fprofile-instr-generate -fcoverage-mapping -Itest/sim -Itest/unit -Isrc';

	system("tar -cf - Makefile redlock_pg.control src test/sim test/unit | tar -C '$dir' -xf -") == 0 or die "no copy\n";
	system("make -B -s -j2 -C '$dir' UNIT_CC='$cc' SIM_CC='$cc' @programs") == 0 or die "a program does not compile\n";
	local $ENV{LLVM_PROFILE_FILE} = "$dir/%m.profraw"; # %m: children of a program add to its counts
	foreach my $program (@programs)
	{
		my $said = `cd '$dir' && $program @{[ $options{$program} // '' ]} 2>&1`;
		die "$program fails:\n$said" if $? != 0;
	}
	return;
}

# Returns what llvm-cov counted in all programs.
sub exported
{
	my ($merge, $cov) = map { chomp(my $path = `clang -print-prog-name=$_`); $path } qw(llvm-profdata llvm-cov);
	my $objects = join(' -object ', map { "$dir/$_" } @programs);

	system("$merge merge -o '$dir/all.profdata' $dir/*.profraw") == 0 or die "no profile\n";
	return decode_json(`$cov export $objects -instr-profile '$dir/all.profdata' -skip-functions $dir/src/protocol $dir/src/driver`);
}

# Notes the branches of a file that are never taken.
sub collect
{
	my ($counts) = @_;
	my $file = $counts->{filename} =~ s{^\Q$dir\E/}{}r;
	my @line = ('', split /\n/, slurp($file), -1);
	my (%times, %number, %count);

	$number{$_} = ++$times{ $line[$_] =~ s/^\s+//r } foreach 1 .. $#line;
	foreach my $branch (@{ $counts->{branches} })
	{
		my ($from, $column, $to, $end, $true, $false) = @$branch;
		my $condition = join("\n", @line[ $from .. $to ]);
		$condition = substr($condition, $column - 1, length($condition) - length($line[$to]) + $end - $column);
		# the compiler demands a case for each value
		next if $line[$from] =~ /^\s*switch \(/;
		my $line = $line[$from] =~ s/^\s+//r;
		$line .= " ($number{$from})" if $number{$from} > 1;
		my $text = "$file: $line: " . ($condition =~ s/\s+/ /gr);
		$count{"$text ==> never true"}  += $true;
		$count{"$text ==> never false"} += $false;
	}
	$branches += keys %count;
	$never{$_} = 1 foreach grep { !$count{$_} } keys %count;
	return;
}
