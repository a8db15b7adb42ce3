#!/usr/bin/perl
#
# scripts/lua_text.pl: make C of the scripts that the nodes execute
#
#	scripts/lua_text.pl >src/protocol/lua_text.c
#
# Removes comments, indentation and empty lines.  When an error of a node names a line of
# user_script, count the lines of the script in lua_text.c.  Users build without this program,
# so lua_text.c is part of the tree; test/unit/lua_text.t fails when lua_text.c is stale.
#
# A Lua function with a name in capitals is a piece: nodes execute no call.  The body of a piece
# replaces each use, with the arguments in the places of the parameters.  A piece on a single
# line, "function NAME(...) return ... end", is part of an expression; a longer piece, up to
# "end" without indentation, is a statement.
#
# The Lua names constants of lua.h, and the C compiler inserts their values: a number as it is,
# a string in quotes.  tostring(CONSTANT) becomes its text, which saves nodes the call.
use strict;
use warnings;

use File::Basename 'dirname';

my $protocol = dirname($0) . '/../src/protocol';
my %is_constant = map { /^#define (LUA_\w+) (?:-?\d+|"[^"]*")(?: |$)/ ? ($1 => 1) : () } lines_of('lua.h');

my $c = <<'C';
/*
 * lua_text.c
 *		The scripts that the nodes execute, made from redlock.lua, marker.lua, hosts.lua,
 *		readers.lua, inspect.lua, inspect_many.lua, key.lua, force_release.lua, scan.lua and
 *		run_note.lua by scripts/lua_text.pl: to be changed there.
 */
#include "protocol/lua.h"

#define TEXT_OF_VALUE(value) #value
#define TEXT(constant) TEXT_OF_VALUE(constant)

/* clang-format off */
C
$c .= "\nconst char lua_script[] =\n" . c_string('redlock.lua') . ";\n";
$c .= "\nconst char lua_marker_script[] =\n" . c_string('marker.lua') . ";\n";
$c .= "\nconst char lua_hosts_script[] =\n" . c_string('hosts.lua') . ";\n";
$c .= "\nconst char lua_readers_script[] =\n" . c_string('readers.lua') . ";\n";
$c .= "\nconst char lua_inspect_script[] =\n" . c_string('key.lua', 'inspect.lua') . ";\n";
$c .= "\nconst char lua_inspect_many_script[] =\n" . c_string('key.lua', 'inspect_many.lua') . ";\n";
$c .= "\nconst char lua_force_script[] =\n" . c_string('force_release.lua') . ";\n";
$c .= "\nconst char lua_scan_script[] =\n" . c_string('scan.lua') . ";\n";
$c .= "\nconst char lua_run_note_script[] =\n" . c_string('run_note.lua') . ";\n";
print $c, <<'C';

/* clang-format on */

typedef char script_fits[sizeof(lua_script) <= LUA_SCRIPT_MAX ? 1 : -1];
C

sub lines_of
{
	my ($file) = @_;

	open my $in, '<', "$protocol/$file" or die "$file: $!\n";
	chomp(my @lines = <$in>);
	return @lines;
}

# A C string for each line; empty lines follow the line before.  Pieces may come from all files.
sub c_string
{
	my (@files) = @_;
	my ($piece, @main) = pieces_of(@files);
	my @lines = grep { $_ ne '' } map { bare(@$_) } expanded($piece, @main);

	foreach my $name (sort keys %$piece)
	{
		die "@files: nothing uses $name\n" unless $piece->{$name}{used};
	}
	return join "\n", map { qq{\t"$_\\n"} } @lines;
}

# The pieces of files by their names, and all other lines with their places.
sub pieces_of
{
	my (@files) = @_;
	my (%piece, @main, $open);

	foreach my $at (map { numbered($_) } @files)
	{
		my $line = $at->[0];
		if ($open)
		{
			if ($line eq 'end') { undef $open; }
			else { push @{ $open->{lines} }, $at; }
		}
		elsif ($line =~ /^function ([A-Z][A-Z_]+)\(([\w, ]*)\)(?: return (.+) end( +--.*)?)?$/)
		{
			die "$at->[1]: $1 is there already\n" if $piece{$1};
			$piece{$1} = { parameters => [ split /, /, $2 ], value => $3, lines => [] };
			$open = $piece{$1} unless defined $3;
		}
		else { push @main, $at; }
	}
	die "@files: a piece without an end\n" if $open;
	return \%piece, @main;
}

# The lines of a file, with their places.
sub numbered
{
	my ($file) = @_;
	my $number = 0;

	return map { [ $_, "$file:" . ++$number ] } lines_of($file);
}

# The lines, with pieces replaced by their bodies.
sub expanded
{
	my ($piece, @lines) = @_;
	my @expanded;

	foreach my $at (@lines)
	{
		my ($line, $where) = @$at;
		if ($line =~ /^\s*([A-Z][A-Z_]+)\((.*)\)$/ && $piece->{$1} && !defined $piece->{$1}{value})
		{
			my $used = $piece->{$1};
			my %argument = arguments_of($used, $2, $where);
			$used->{used} = 1;
			push @expanded, expanded($piece, map { [ with($_->[0], \%argument), $_->[1] ] } @{ $used->{lines} });
		}
		else { push @expanded, [ with_values($piece, $line, $where), $where ]; }
	}
	return @expanded;
}

# A line, with pieces replaced by their expressions.
sub with_values
{
	my ($piece, $line, $where) = @_;

	return $line if $line =~ /^\s*--/;
	while ($line =~ /\b([A-Z][A-Z_]+)(\((?:[^()']|'(?:[^'\\]|\\.)*'|(?2))*\))/g)
	{
		my ($name, $begin, $end, $text) = ($1, $-[0], $+[0], substr($2, 1, -1));
		my $used = $piece->{$name};
		die "$where: there is no piece $name for an expression\n" unless $used && defined $used->{value};
		my %argument = arguments_of($used, $text, $where);
		$used->{used} = 1;
		substr($line, $begin, $end - $begin) = with($used->{value}, \%argument);
		pos($line) = $begin; # the value may use other pieces
	}
	return $line;
}

sub arguments_of
{
	my ($used, $text, $where) = @_;
	my @given = $text =~ /\G\s*((?:[^,()']|'(?:[^'\\]|\\.)*'|(\((?:[^()']|'(?:[^'\\]|\\.)*'|(?2))*\)))+),?/g;
	@given = @given[ grep { $_ % 2 == 0 } 0 .. $#given ];

	die "$where: another number of arguments\n" unless @given == @{ $used->{parameters} };
	my %argument;
	@argument{ @{ $used->{parameters} } } = @given;
	return %argument;
}

sub with
{
	my ($text, $argument) = @_;

	$text =~ s/('(?:[^'\\]|\\.)*'|--.*)|\b([a-z_]+)\b/$1 \/\/ $argument->{$2} \/\/ $2/ge if %$argument;
	return $text;
}

# The part of a line that nodes must read, as a string of C.
sub bare
{
	my ($line, $where) = @_;
	my $bare = '';

	$line =~ s/^\s+//;
	pos($line) = 0;
	while (pos($line) < length $line)
	{
		if ($line =~ /\G--(?!\[=*\[)/gc) { last; }
		elsif ($line =~ /\Gtostring\((LUA_\w+)\)/gc) { $bare .= qq{'" } . text_of($1, $where) . qq{ "'}; }
		elsif ($line =~ /\G(LUA_\w+)/gc) { $bare .= qq{" } . text_of($1, $where) . qq{ "}; }
		elsif ($line =~ /\G(\w+|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"\w\[]|\[(?![\[=]))/gc)
		{
			$bare .= $1 =~ s/(["\\])/\\$1/gr;
		}
		else { die "$where: can't be made C of: " . substr($line, pos $line) . "\n"; }
	}
	return $bare =~ s/\s+$//r;
}

sub text_of
{
	my ($name, $where) = @_;

	die "$where: lua.h has no such number or text: $name\n" unless $is_constant{$name};
	return "TEXT($name)";
}
