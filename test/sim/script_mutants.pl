#!/usr/bin/perl
#
# script_mutants.pl: break redlock.lua in one place at a time, and check that conformance.c finds
# each broken script.
#
#	script_mutants.pl [--jobs N] [--share K/N] [--list] [--line FROM-TO] [PATTERN]
#
# The program mutates each line of the script.  It drops the line; replaces a condition, or a part of
# it, by true or false; changes a comparison, "and", "or", "not", a sum, math.max, a number, a text or
# the key of a command; and makes a protected call unprotected.  A mutant is a text like
# "before ==> after".  script_equivalents.txt lists equivalent mutants, with the reason.  The program
# does not run these, but each entry must fit a mutant.
#
# --share K/N runs each Nth mutant, from the Kth on; --line only mutants of these lines; PATTERN only
# mutants with a matching text; --list shows the mutants and runs none.  A surviving mutant runs again
# with more sequences and another seed.  Writes TAP: one test for each mutant.
use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use Getopt::Long;

use lib dirname(abs_path($0));
use Mutants;

my $sim  = dirname(abs_path($0));
my ($jobs, $share, $list, $lines) = (2, '1/1', 0, '');
GetOptions('jobs=i' => \$jobs, 'share=s' => \$share, 'list' => \$list, 'line=s' => \$lines) or exit 2;
my ($part, $parts) = $share =~ m{^(\d+)/(\d+)$} or die "--share is K/N\n";
my ($from, $to)    = $lines =~ m{^(\d+)-(\d+)$};
my ($wanted)       = @ARGV;

# Seed and number of sequences of each run.  A mutant survives if it survives all runs.
my @runs = ([ 20240607, 400 ], [ 99, 800 ], [ 7, 2400 ], [ 8, 4800 ]);

# A run that takes longer has no verdict.
my $seconds = 300;

# A run without a verdict is repeated, because the machine may be slow.  A mutant without any verdict
# counts as found: its script may not end, for instance.
my $tries = 3;

my $dir = tempdir(CLEANUP => 1);
my @script = split /\n/, `"$sim/conformance" --script`, -1;
die "make conformance first\n" if @script < 2;

my %equivalent = read_reasons("$sim/script_equivalents.txt");
my @mutants    = all_mutants();
my $all        = @mutants;
my $skipped    = grep { $equivalent{ $_->{text} } } @mutants;
my %there      = map { $_->{text} => 1 } @mutants;
my @stale      = grep { !$there{$_} } sort keys %equivalent;
my $number     = 0;
@mutants = grep { ++$number % $parts == $part % $parts } @mutants;
@mutants = grep { !$equivalent{ $_->{text} } } @mutants;
@mutants = grep { $_->{line} >= $from and $_->{line} <= $to } @mutants if defined $from;
@mutants = grep { $_->{text} =~ /$wanted/ } @mutants if defined $wanted;

if ($list)
{
	print "$_->{line}: $_->{text}\n" foreach @mutants;
	exit 0;
}

check(is_found({ line => 1, new => $script[0] }) eq 'no', 'the script itself is not found broken');
check(0, "an entry of script_equivalents.txt fits no mutant: $_") foreach @stale;

my $without_verdict = 0;
run_mutants($jobs, \@mutants, \&is_found, sub {
	my ($mutant, $found) = @_;
	$without_verdict++ if $found eq 'no verdict';
	return check(scalar($found =~ /^(?:yes|no verdict)$/), "line $mutant->{line}: $mutant->{text} ($found)");
});
finish(sprintf '%d mutants, %d of them equivalent; %d run, %d of them without a verdict', $all, $skipped,
	scalar @mutants, $without_verdict);

# Does conformance.c fail with the mutant?  Returns "yes", "no", or "no verdict".
sub is_found
{
	my ($mutant) = @_;
	my $file = "$dir/$$.lua";
	my @text = @script;

	$text[ $mutant->{line} - 1 ] = $mutant->{new};
	write_file($file, join("\n", @text));
	foreach my $run (@runs)
	{
		my ($seed, $sequences) = @$run;
		my ($said, $failed);
		foreach (1 .. $tries)
		{
			$said = `SCRIPT='$file' SEED=$seed SEQUENCES=$sequences timeout $seconds '$sim/conformance' 2>&1`;
			$failed = $? != 0;
			last if !$failed or $said =~ /^not ok/m;
		}
		return $said =~ /^not ok/m ? 'yes' : 'no verdict' if $failed;
	}
	return 'no';
}

# Returns all mutants in the order of the lines.  Equal lines get a number.
sub all_mutants
{
	my (@all, %times);

	for my $i (0 .. $#script)
	{
		my $line = $script[$i];
		next if $line =~ /^\s*(?:end|else|repeat|until true|return arguments|\}?)$/;
		my $place = $line;
		$place .= " ($times{$line})" if $times{$line}++;
		my %seen = ($line => 1);
		foreach my $new (mutants_of($line))
		{
			next if $seen{$new}++;
			push @all, { line => $i + 1, new => $new, text => "$place ==> $new" };
		}
	}
	return @all;
}

sub mutants_of
{
	my ($line) = @_;
	my @new;

	# the line, if it is a statement
	push @new, '' if $line !~ /\b(?:if|elseif|for|then|do)\b|^(?:local function|and|or|\.\.)/ and $line !~ /[,({]$/;
	# the condition, and its parts
	if ($line =~ /^(if|elseif) (.*) then$/)
	{
		push @new, "$1 true then", "$1 false then";
	}
	push @new, parts_of($line);
	# operators and words, place by place
	push @new, each_place($line, qr/(?<![~<>=])==(?!=)/, sub { '~=' });
	push @new, each_place($line, qr/~=/, sub { '==' });
	push @new, each_place($line, qr/<(?!=)/, sub { '<=' });
	push @new, each_place($line, qr/>(?!=)/, sub { '>=' });
	push @new, each_place($line, qr/<=/, sub { '<' });
	push @new, each_place($line, qr/>=/, sub { '>' });
	push @new, each_place($line, qr/\band\b/, sub { 'or' });
	push @new, each_place($line, qr/\bor\b/,  sub { 'and' });
	push @new, each_place($line, qr/\bnot /,  sub { '' });
	push @new, each_place($line, qr/ \+ /, sub { ' - ' });
	push @new, each_place($line, qr/ - /,  sub { ' + ' });
	push @new, each_place($line, qr/ % /,  sub { ' * ' });
	push @new, each_place($line, qr/math\.max/, sub { 'math.min' });
	push @new, each_place($line, qr/\btry(?=\()/, sub { 'call' });
	push @new, each_place($line, qr/\btrue\b/, sub { 'false' }) if $line !~ /^until/;
	push @new, each_place($line, qr/\bfalse\b/, sub { 'true' });
	# numbers; long numbers are times, which tests know roughly
	push @new, each_place($line, qr/(?<![\w.'%\\])\d+(?![\w.'])/, sub { $_[0] < 1000 ? $_[0] + 1 : 2 * $_[0] + 1 });
	# texts, except messages for people, names of commands, and a key that never exists
	push @new, each_place($line, qr/'(?:[^'\\]|\\.)*'/, sub { $_[0] =~ /^'(?:[A-Z]+'$| |ERR |\\0none')/ ? $_[0] : "'x" . substr($_[0], 1) });
	# keys of commands
	push @new, each_place($line, qr/(?<=', )(?:key|lock|queue|readers|counter_key|bar|other_key)\b(?! \.\. '\\0none')/, sub { "'x' .. $_[0]" });
	return @new;
}

# Makes a mutant by each of the subs, for each match outside of a text.
sub each_place
{
	my ($line, $what, @subs) = @_;
	my @new;

	while ($line =~ /$what/g)
	{
		my ($begin, $found) = ($-[0], $&);
		my $before = substr($line, 0, $begin);
		my $quotes = () = $before =~ /(?<!\\)'/g;
		next if $quotes % 2 and $found !~ /^'/;
		next if $quotes % 2; # a quote that ends a text
		foreach my $sub (@subs)
		{
			my $new = $sub->($found);
			push @new, $before . $new . substr($line, $begin + length $found);
		}
	}
	return @new;
}

# Leaves out each operand of "and" and "or": true or false takes its place, which decides nothing.
sub parts_of
{
	my ($line) = @_;
	my @new;

	while ($line =~ /\b(and|or) /g)
	{
		my ($word, $begin, $end) = ($1, $-[0], $+[0]);
		my $nothing = $word eq 'and' ? 'true' : 'false';
		my $left = substr($line, 0, $begin) =~ s/\s+$//r;
		my $right = substr($line, $end);
		my $taken = operand($right);
		push @new, "$left $word $nothing" . substr($right, length $taken) if $taken ne '';
		my $last = reverse operand(scalar reverse($left) =~ tr/()/)(/r) =~ tr/()/)(/r;
		push @new, substr($left, 0, length($left) - length $last) . "$nothing $word $right" if $last ne '';
	}
	return @new;
}

# Returns the text before the next "and", "or", "then" or closing parenthesis.  The text may be
# reversed, and so the words.
sub operand
{
	my ($text) = @_;
	my $depth = 0;
	my $at = 0;

	while ($at < length $text)
	{
		my $rest = substr($text, $at);
		last if $depth == 0 and $rest =~ /^(?: (?:and|or|then|dna|ro|fi|fiesle|nruter)\b| = | ?[,)])/;
		$depth++ if $rest =~ /^[({]/;
		$depth-- if $rest =~ /^[)}]/;
		$at++;
	}
	return substr($text, 0, $at);
}
