#!/usr/bin/perl
#
# mutants.pl: break one reader at a time; its fuzzing program must find the fault
#
#	mutants.pl [--seconds N] [NAME ...]
#
# Reads mutants.txt, and works with a copy in a temporary directory.  Writes TAP: one test for each
# mutant.  Only a surviving mutant takes all the seconds.
use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use Getopt::Long;

use lib dirname(abs_path($0)) . '/../sim';
use Mutants;

my $root = abs_path(dirname(abs_path($0)) . '/../..');
chdir $root or die $!;
my $seconds = 60;
GetOptions('seconds=i' => \$seconds) or exit 2;
my %wanted = map { $_ => 1 } @ARGV;
my @mutants = grep { !@ARGV || $wanted{ $_->{name} } } read_mutants('test/fuzz/mutants.txt');
die "no such mutant\n" unless @mutants;

my $dir = tempdir(CLEANUP => 1);
system("tar -C '$root' -cf - --exclude='*_fuzz' Makefile redlock_pg.control src test/fuzz test/unit | tar -C '$dir' -xf -") == 0
  or die "no copy\n";

# One at a time: all mutants use the same copy.
my $killed = run_mutants(1, \@mutants, \&try_mutant, sub {
	my ($mutant, $result) = @_;
	return check(scalar($result =~ /^found/), sprintf('%-26s %s', $mutant->{name}, $result));
});
finish(sprintf '%d mutants, %d killed', scalar @mutants, $killed);

# Returns "found: ...", or why the target found nothing.
sub try_mutant
{
	my ($mutant) = @_;
	my ($file, $text) = eval { edited($mutant) } or return $@ =~ s/\n\z//r;

	write_file("$dir/$file", $text);
	my $result = run_program($mutant->{program});
	write_file("$dir/$file", slurp($file));
	return $result;
}

sub run_program
{
	my ($program) = @_;

	unlink "$dir/test/fuzz/${program}_fuzz";
	system("make -s -C '$dir' PG_CONFIG='" . ($ENV{PG_CONFIG} // 'pg_config') . "' FUZZ_WARNINGS=-w test/fuzz/${program}_fuzz") == 0
	  or return 'it does not compile';
	my $said = `'$dir/test/fuzz/fuzz.pl' --seconds $seconds $program 2>&1`;
	return 'it survives' if $? == 0;
	return $said =~ /^# .*?(it does not hold: .*|runtime error: .*|AddressSanitizer: \S+)/m ? "found: $1" : "it fails otherwise: $said";
}
