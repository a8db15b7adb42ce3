#!/usr/bin/perl
#
# scripts/lua_text.pl: make C of the scripts that the nodes execute
#
#	scripts/lua_text.pl >src/protocol/lua_text.c
#
# Comments and indentation go; all else stays, each line with its number.  Users build
# without this program, so what it makes is part of the tree; test/unit/lua_text.t says
# when that is stale.
#
# A constant of lua.h stands in the Lua by its name, and the C compiler puts it in: a number
# as it is, a string in quotes.  tostring(CONSTANT) becomes its text, so that no node spends
# time on the call.
use strict;
use warnings;

use File::Basename 'dirname';

my $protocol = dirname($0) . '/../src/protocol';
my %is_constant = map { /^#define (LUA_\w+) (?:-?\d+|"[^"]*")(?: |$)/ ? ($1 => 1) : () } lines_of('lua.h');

my $c = <<'C';
/*
 * lua_text.c
 *		The scripts that the nodes execute, made from redlock.lua, marker.lua, hosts.lua and
 *		readers.lua by scripts/lua_text.pl: to be changed there.
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

# Each line by itself; those of which nothing is left follow the one before.
sub c_string
{
	my ($file) = @_;
	my ($string, $number) = ('', 0);

	foreach my $line (lines_of($file))
	{
		my $bare = bare($line, "$file:" . ++$number);
		$string .= qq{"\n} if $bare ne '' && $string ne '';
		$string .= qq{\t"} if $bare ne '' || $string eq '';
		$string .= "$bare\\n";
	}
	return qq{$string"};
}

# What a node has to read of a line, as it stands in a string of C.
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
