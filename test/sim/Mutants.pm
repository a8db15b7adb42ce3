# Mutants.pm: run mutants of a source in child processes, and write TAP
#
# Each program tries a mutant, and judges the result.  This module runs the tries at the same time,
# and writes the TAP.  Programs with a table of mutants read it by read_mutants:
#
# [name]
# key: text                     one of @KEYS; a repeated key adds a line
# file: the file of the edits that follow, below the root, test/sim, src/protocol or src
# <<<
# the text to be replaced, which must occur exactly once
# ===
# the new text
# >>>                           several edits are possible
#
# The last newline of both texts is dropped: a text may end within a line.
package Mutants;

use strict;
use warnings;

use Exporter 'import';
use POSIX ();

our @EXPORT = qw(read_mutants edited run_mutants check finish read_reasons sources_of slurp write_file);

my @KEYS = qw(what kills faults from program mode finds); # of all tables

my ($tests, $failed) = (0, 0);

# Returns the mutants of a table, each with a name, keys, and `edits`: file, old text and new text.
sub read_mutants
{
	my ($table) = @_;
	my (@mutants, $mutant, $file, $part);
	my $key = join '|', @KEYS;

	open(my $in, '<', $table) or die "$table: $!\n";
	while (my $line = <$in>)
	{
		if (defined $part)
		{
			if ($line =~ /^===$/) { $part = 'new'; }
			elsif ($line =~ /^>>>$/) { undef $part; }
			else { $mutant->{edits}[-1]{$part} .= $line; }
		}
		elsif ($line =~ /^<<<$/)
		{
			die "$table:$.: of which file?\n" unless defined $file;
			push @{ $mutant->{edits} }, { file => $file, old => '', new => '' };
			$part = 'old';
		}
		elsif ($line =~ /^\[([\w-]+)\]$/)
		{
			$mutant = { name => $1, edits => [] };
			push @mutants, $mutant;
			undef $file;
		}
		elsif ($line =~ /^file: (\S+)$/) { $file = $1; }
		elsif ($line =~ /^($key): (.*)$/) { $mutant->{$1} = defined $mutant->{$1} ? "$mutant->{$1}\n$2" : $2; }
		elsif ($line !~ /^(#.*)?$/) { die "$table:$.: what is this?\n"; }
	}
	close($in);
	foreach my $edit (map { @{ $_->{edits} } } @mutants)
	{
		chomp($edit->{old}, $edit->{new});
	}
	return @mutants;
}

# Returns the files of a mutant, each followed by its new text.  Dies if the mutant has no edit, or
# a text does not occur exactly once.  Paths begin at the current directory, the root of the sources.
sub edited
{
	my ($mutant) = @_;
	my %text;

	foreach my $edit (@{ $mutant->{edits} })
	{
		my ($path) = grep { -e } map { $_ . $edit->{file} } ('', 'test/sim/', 'src/protocol/', 'src/');
		die "no file $edit->{file}\n" unless defined $path;
		$text{$path} //= slurp($path);
		my $count = () = $text{$path} =~ /\Q$edit->{old}\E/g;
		die "its text is in $path $count times, not once\n" if $count != 1;
		$text{$path} =~ s/\Q$edit->{old}\E/$edit->{new}/;
	}
	die "nothing to change\n" unless %text;
	return %text;
}

# Calls $try->($mutant) in a child process, with $jobs children at a time.  When a child ends, calls
# $report->($mutant, $result) in this process, with the text that $try returned, or '' if $try died.
# $report calls check() and returns its value.  Returns the number of killed mutants.
sub run_mutants
{
	my ($jobs, $mutants, $try, $report) = @_;
	my @queue  = @$mutants;
	my $killed = 0;
	my %running;

	$| = 1;
	while (@queue or %running)
	{
		while (@queue and keys %running < $jobs)
		{
			my $mutant = shift @queue;
			pipe(my $from, my $to) or die "pipe: $!\n";
			my $pid = fork() // die "fork: $!\n";
			if ($pid == 0)
			{
				my $result = eval { $try->($mutant) } // warn $@;
				syswrite $to, $result if $@ eq '';
				POSIX::_exit(0); # the parent removes the directories
			}
			$running{$pid} = [ $mutant, $from ];
		}
		my ($mutant, $from) = @{ delete $running{ wait() } };
		my $result = do { local $/; <$from> };
		$killed++ if $report->($mutant, $result // '');
	}
	return $killed;
}

# Writes one test of TAP.  Returns $good.  A match without a result vanishes from a list of
# arguments: callers pass scalar(...).
sub check
{
	die "check needs two arguments\n" if @_ != 2;
	my ($good, $what) = @_;

	$tests++;
	$failed++ unless $good;
	# TAP reads "#" as the beginning of a directive
	print $good ? '' : 'not ', "ok $tests - ", $what =~ s/#/\\#/gr, "\n";
	return $good;
}

# Ends the TAP and the program.
sub finish
{
	my ($summary) = @_;

	print "1..$tests\n# $summary\n";
	exit($failed ? 1 : 0);
}

# Returns the reason of each entry of a list.  In the file a reason, in lines that begin with "#",
# precedes its entries, and each entry has "==>".
sub read_reasons
{
	my ($file) = @_;
	my (%reason, $reason);

	foreach my $line (split /\n/, slurp($file), -1)
	{
		if    ($line =~ /^#/)    { $reason = $line; }
		elsif ($line =~ / ==> /) { $reason{$line} = $reason // die "$file: no reason for $line\n"; }
		elsif ($line eq '')      { undef $reason; }
		else                     { die "$file: what is this? $line\n"; }
	}
	return %reason;
}

# Returns the sources of a program, as make compiles them in the current directory.
sub sources_of
{
	my ($program) = @_;
	my ($command) = grep { / -o / } `make -Bn $program 2>/dev/null`;
	return $command =~ m{(\S+\.c)\b}g;
}

sub slurp
{
	my ($file) = @_;

	open(my $in, '<', $file) or die "$file: $!\n";
	local $/;
	return <$in>;
}

sub write_file
{
	my ($file, $text) = @_;

	open(my $out, '>', $file) or die "$file: $!\n";
	print $out $text;
	close($out) or die "$file: $!\n";
	return;
}

1;
