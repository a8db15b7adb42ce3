#!/usr/bin/perl
#
# generated_mutants.pl: break a pure source in one place at a time; a unit test or a simulator must
# notice.
#
#	generated_mutants.pl [--jobs N] [--sample N] [--seed N] [--schedules N] [--list] [PATTERN]
#
# mutants.txt has mutants that people wrote; this program makes mutants of each line of src/ that a
# simulator links.  It drops a statement, negates a condition, and changes a comparison, "&&", "||", a
# sum, a number by one, and true and false.  A mutant is a text like "file:line: before ==> after".
#
# --sample N runs N of them, chosen by --seed; PATTERN only mutants with a matching text; --list shows
# the mutants and runs none.  generated_equivalents.txt lists equivalent mutants, with the reason.  The
# program does not run these; a sample is the same with and without the list.
#
# A unit test kills a mutant, else a simulator that links the file, else conformance: by a failed check,
# an assertion, an index beyond an array, or a run without an end.  A mutant that the compiler rejects counts as killed, too.
# Writes TAP: one test for each mutant.
use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use Getopt::Long;
use List::Util qw(shuffle uniq);
use POSIX ();

use lib dirname(abs_path($0));
use Mutants;

my ($jobs, $sample, $seed, $schedules, $list) = (2, 0, 1, 10000, 0);
GetOptions('jobs=i' => \$jobs, 'sample=i' => \$sample, 'seed=i' => \$seed, 'schedules=i' => \$schedules,
	'list' => \$list) or exit 2;
my ($wanted) = @ARGV;

chdir dirname(abs_path($0)) . '/../..' or die $!;
my $cc = $ENV{CC} || 'gcc';
my @simulators = map { "test/sim/$_" } qw(sim crowd deadlock together permits changes);
# The sources of each program; conformance compares the node of the simulators with a real one.
my %sources = map { $_ => [ sources_of($_) ] } unit_tests(), @simulators, 'test/sim/conformance';
my @files = grep { m{^src/} } uniq(map { @{ $sources{$_} } } @simulators);

# A run that uses more time of a processor has no end: mutants of loops.  All tests of one kind use
# less than a tenth.
my %seconds = (unit => 20, sim => 120);

my $dir = tempdir(CLEANUP => 1);
my %equivalent = read_reasons('test/sim/generated_equivalents.txt');
my @mutants = map { mutants_of_file($_) } @files;
my $all = @mutants;
my %there = map { $_->{text} => 1 } @mutants;
my @stale = grep { !$there{$_} } sort keys %equivalent;
@mutants = grep { $_->{text} =~ /$wanted/ } @mutants if defined $wanted;
if ($sample)
{
	srand $seed;
	@mutants = shuffle(@mutants);
	splice @mutants, $sample if @mutants > $sample;
}
@mutants = grep { !$equivalent{ $_->{text} } } @mutants;
if ($list)
{
	print "$_->{line}: $_->{text}\n" foreach @mutants;
	exit 0;
}

foreach my $program (keys %sources)
{
	delete $sources{$program} unless grep { my $source = $_; grep { $_->{file} eq $source } @mutants } @{ $sources{$program} };
}
compile_all();

print "# seed $seed, $schedules schedules of the simulator for each mutant\n";
check(0, "an entry of generated_equivalents.txt fits no mutant: $_") foreach @stale;
my %count;
my $killed = run_mutants($jobs, \@mutants, \&try_mutant, sub {
	my ($mutant, $result) = @_;
	my ($how) = $result =~ /^(.*?): /;
	$count{ $how // 'survives' }++;
	return check(defined $how && $how ne 'survives', "line $mutant->{line} of $mutant->{text}: $result");
});
finish(sprintf '%d generated mutants, %d listed as equivalent; %d run: %d killed (%d by unit tests, %d by '
	. 'programs of test/sim, %d have no end, %d do not compile), %d survive', $all, scalar keys %equivalent,
	scalar @mutants, $killed, map { $count{$_} // 0 } 'unit test', 'test/sim', 'no end', 'compiler', 'survives');

# Returns "kind: what", of the first test that notices the mutant.
sub try_mutant
{
	my ($mutant) = @_;
	my ($file, $at) = ($mutant->{file}, "$dir/$$");
	my @text = read_lines($file);

	$text[ $mutant->{line} - 1 ] = $mutant->{new};
	write_file("$at.c", join("\n", @text));
	compile("$at.c", "$at.o") or return 'compiler: rejects it';
	foreach my $program ((sort grep { m{/unit/} } keys %sources), grep { $sources{$_} } @simulators, 'test/sim/conformance')
	{
		next unless grep { $_ eq $file } @{ $sources{$program} };
		my $libraries = $program =~ /conformance/ ? '-lhiredis' : '';
		my @objects = map { $_ eq $file ? "$at.o" : object($_) } @{ $sources{$program} };
		system("$cc -o $at.run @objects $libraries 2>/dev/null") == 0 or return 'compiler: does not link';
		my $options = $program eq 'test/sim/sim'   ? "--schedules $schedules --jobs 1 --min-faults 0"
		  : $program eq 'test/sim/changes' ? '60'
		  :                                  '';
		my ($kind) = $program =~ m{^test/(\w+)/};
		system("ulimit -c 0; ulimit -t $seconds{$kind}; exec $at.run $options >/dev/null 2>&1");
		return "no end: $program" if ($? & 127) == 24 or ($? & 127) == 9;
		return ($kind eq 'unit' ? 'unit test' : 'test/sim') . ": $program" if $? != 0;
	}
	unlink "$at.run";
	return 'survives: all tests pass';
}

# All unit tests but two, which need PostgreSQL.
sub unit_tests
{
	my @tests = map { "test/unit/$_" } map { s{.*/}{}r =~ s/\.c$//r } glob 'test/unit/*_test.c';
	return grep { !/script_test|node_status_test/ } @tests;
}

# Compiles the sources of all programs, once each.
sub compile_all
{
	my %all = map { $_ => 1 } map { @$_ } values %sources;
	my @all = sort keys %all;
	my @pids;

	foreach my $job (0 .. $jobs - 1)
	{
		my $pid = fork() // die "fork: $!";
		if ($pid == 0)
		{
			my @failed = grep { !compile($all[$_], object($all[$_])) } grep { $_ % $jobs == $job } 0 .. $#all;
			POSIX::_exit(@failed ? 1 : 0);
		}
		push @pids, $pid;
	}
	foreach my $pid (@pids)
	{
		waitpid($pid, 0);
		die "a source does not compile\n" if $? != 0;
	}
	return;
}

sub object
{
	my ($source) = @_;
	return "$dir/" . ($source =~ tr{/}{-}r) . '.o';
}

sub compile
{
	my ($from, $to) = @_;
	return system("$cc -std=c99 -O1 -w -fsanitize=bounds -fsanitize-undefined-trap-on-error -Itest/sim -Itest/unit -Isrc -c -o $to $from 2>/dev/null") == 0;
}

sub read_lines
{
	my ($file) = @_;
	return split /\n/, slurp($file), -1;
}

# Returns all mutants of the functions of a file, in the order of the lines.  Equal lines get a number.
sub mutants_of_file
{
	my ($file) = @_;
	my @line = read_lines($file);
	my (@all, %times, $comment, $inside);

	for my $i (0 .. $#line)
	{
		my $line = $line[$i];
		$inside  = 1 if $line eq '{';
		$inside  = 0 if $line eq '}';
		$comment = 1 if $line =~ m{^\s*/\*};
		my $skip = $comment || !$inside || $line =~ /^#|\bassert\(|^\s*(?:case .*|default):$/;
		$comment = 0 if $line =~ m{\*/};
		next if $skip;
		my $place = $line =~ s/^\s+//r;
		$place .= " ($times{$place})" if $times{$place}++;
		my %seen = ($line => 1);
		my $begins = $i > 0 && $line[ $i - 1 ] =~ /(?:[;{}:]|\*\/)$|^\s*else$|^\s*(?:if|for|while) \(.*\)$|^$/;
		foreach my $new (mutants_of($line, $begins))
		{
			next if $seen{$new}++;
			push @all, { file => $file, line => $i + 1, new => $new,
				text => "$file: $place ==> " . ($new =~ s/^\s+//r) };
		}
	}
	return @all;
}

sub mutants_of
{
	my ($line, $begins) = @_;
	my ($code, $rest) = $line =~ m{^(.*?)(\s*/\*.*)?$};
	my @new;

	$rest //= '';
	# a statement, if the line is all of one
	push @new, "\t;" if $begins and $code =~ /^\t+(?:[a-z][\w.>\[\]-]*(?:\(| [-+|&]?= |\+\+;|--;)|\*|\(void\) ).*;$/
	  and $code !~ /^\t+(?:return|goto|break|continue)\b/;
	push @new, "$1 (!($2))" . ($3 // '') if $code =~ /^(\s*(?:else )?(?:if|while)) \((.*)\)( \{)?$/ and balanced($2);
	push @new, each_place($code, $rest, qr/ == /,  sub { ' != ' });
	push @new, each_place($code, $rest, qr/ != /,  sub { ' == ' });
	push @new, each_place($code, $rest, qr/ < /,   sub { ' <= ' });
	push @new, each_place($code, $rest, qr/ > /,   sub { ' >= ' });
	push @new, each_place($code, $rest, qr/ <= /,  sub { ' < ' });
	push @new, each_place($code, $rest, qr/ >= /,  sub { ' > ' });
	push @new, each_place($code, $rest, qr/ &&/,   sub { ' ||' });
	push @new, each_place($code, $rest, qr/ \|\|/, sub { ' &&' });
	push @new, each_place($code, $rest, qr/ \+ /,  sub { ' - ' });
	push @new, each_place($code, $rest, qr/ - /,   sub { ' + ' });
	push @new, each_place($code, $rest, qr/\btrue\b/,  sub { 'false' });
	push @new, each_place($code, $rest, qr/\bfalse\b/, sub { 'true' });
	push @new, each_place($code, $rest, qr/(?<![\w.'"%])\d+(?![\w.'"%])/, sub { $_[0] + 1 });
	push @new, each_place($code, $rest, qr/(?<![\w.'"%])[1-9]\d*(?![\w.'"%])/, sub { $_[0] - 1 });
	return @new;
}

sub balanced
{
	my ($text) = @_;
	my $depth = 0;

	foreach my $bracket ($text =~ /[()]/g)
	{
		$depth += $bracket eq '(' ? 1 : -1;
		return 0 if $depth < 0;
	}
	return $depth == 0;
}

# Makes a mutant for each match outside of a text.
sub each_place
{
	my ($code, $rest, $what, $sub) = @_;
	my @new;

	while ($code =~ /$what/g)
	{
		my ($begin, $found) = ($-[0], $&);
		my $before = substr($code, 0, $begin);
		my $quotes = () = $before =~ /"/g;
		next if $quotes % 2;
		push @new, $before . $sub->($found) . substr($code, $begin + length $found) . $rest;
	}
	return @new;
}
