#!/usr/bin/perl
# scripts/lint_evidence.pl: does the evidence exist that SAFETY.md and model/README.md name?
#
# Checks that functions, configurations of models, mutants and tests exist; that each claim of
# SAFETY.md has a counterexample, a function and a command; and that the table of model/README.md
# agrees with the configurations.  Links and paths: scripts/lint_docs.pl links.
#
# Prints each fault, and then fails.  scripts/lint.sh calls it, at the root of the tree.

use strict;
use warnings;

my $wrong = 0;
my $models = join '|', map { /(\w+)\.tla$/ } glob 'model/*.tla';
my $mutants = content_of('test/sim/mutants.txt');

sub complain
{
	print "@_\n";
	$wrong = 1;
}

sub content_of
{
	my ($path) = @_;

	open my $in, '<', $path or die "$path: $!\n";
	local $/;
	return scalar <$in>;
}

# "`f`, `g` in `file.c`": functions with their file.
sub check_functions
{
	my ($document, $text) = @_;

	while ($text =~ /((?:`\w+`(?:, | and ))*`\w+`) in `(\w+\.c)`/g)
	{
		my ($functions, $file) = ($1, $2);
		my ($path) = glob "src/*/$file";

		if (!$path)
		{
			complain("$document: no such file: $file");
			next;
		}
		foreach my $function ($functions =~ /`(\w+)`/g)
		{
			complain("$document: not in $path: $function") if content_of($path) !~ /^\Q$function\E\(/m;
		}
	}
}

sub check_names
{
	my ($document, $text) = @_;

	foreach my $name ($text =~ /`((?:$models)(?:_\w+)?)`/g)
	{
		complain("$document: no such configuration: $name") if !-e "model/$name.cfg";
	}
	foreach my $name (map { split ' ' } $text =~ /`model\/run ([\w ]+)`/g)
	{
		complain("$document: no such model: $name") if !-e "model/$name.cfg";
	}
	while ($text =~ /\bmutants? ((?:`[\w-]+`, )*`[\w-]+`)/g)
	{
		foreach my $mutant ($1 =~ /`([\w-]+)`/g)
		{
			complain("$document: no such mutant: $mutant") if $mutants !~ /^\[\Q$mutant\E\]$/m;
		}
	}
}

# Each claim rests on evidence of each kind.
sub check_claims
{
	my ($text) = @_;
	my %wanted = (
		2 => [ 'counterexample', qr/\]\(model\/README\.md#\w/ ],
		3 => [ 'function', qr/` in `\w+\.c`/ ],
		4 => [ 'model', qr/\bmodels? `\w/ ],
		5 => [ 'command', qr/`(?:model\/run|make|scripts\/\S+|bench\/run) \w/ ]);
	my @claims = $text =~ /^\| (\*\*\d.*) \|$/mg;

	die "no claims in SAFETY.md\n" if @claims < 5;
	foreach my $claim (@claims)
	{
		my @cells = split / \| /, $claim;

		complain("SAFETY.md: want 6 cells, and there are " . @cells . ": $cells[0]") if @cells != 6;
		foreach my $cell (sort keys %wanted)
		{
			my ($what, $pattern) = @{ $wanted{$cell} };
			complain("SAFETY.md: no $what: $cells[0]") if ($cells[$cell] // '') !~ $pattern;
		}
	}
}

# Compares the table of configurations with the purpose and the expected result in each file.
sub check_results
{
	my ($text) = @_;

	foreach my $path (sort glob 'model/*.cfg')
	{
		my ($name) = $path =~ /(\w+)\.cfg$/;
		my ($purpose) = content_of($path) =~ /^\\\* (.*)$/m;
		my ($result) = content_of($path) =~ /^\\\* Expected: ([^;.]*)/m;

		if (!defined $result)
		{
			complain("$path: no expected result");
			next;
		}
		my $row = "| [$name]($name.cfg) | $purpose | $result |" =~ s/ +/ /gr;
		complain("model/README.md: no row: $row") if index($text, "$row\n") < 0;
	}
	foreach my $name ($text =~ /^\| \[(\w+)\]\(\w+\.cfg\) \|/mg)
	{
		complain("model/README.md: no such configuration: $name") if !-e "model/$name.cfg";
	}
}

foreach my $document ('SAFETY.md', 'model/README.md')
{
	check_functions($document, content_of($document));
	check_names($document, content_of($document));
}
check_claims(content_of('SAFETY.md'));
check_results(content_of('model/README.md'));
exit $wrong;
