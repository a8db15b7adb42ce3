#!/usr/bin/perl
#
# Protects from: nodes executing scripts in another form than the form that maintainers read and
# change: src/protocol/lua_text.c must be the output of scripts/lua_text.pl, and this program must
# remove only text that is no part of a script.
use strict;
use warnings;

use File::Copy 'copy';
use File::Temp 'tempdir';
use Test::More;

my $tree = tempdir(CLEANUP => 1);
my $lua  = "$tree/src/protocol/redlock.lua";
mkdir "$tree/$_" or die $! foreach qw(scripts src src/protocol);
copy($_, "$tree/$_") or die $! foreach 'scripts/lua_text.pl', glob('src/protocol/*.lua'), 'src/protocol/lua.h';

sub slurp
{
	my ($file) = @_;

	open my $in, '<', $file or die "$file: $!";
	local $/;
	return scalar <$in>;
}

sub made { return scalar `$^X $tree/scripts/lua_text.pl 2>$tree/errors`; }

# The C string of a script with this text, or the error.
sub made_of
{
	my ($text) = @_;

	open my $out, '>', $lua or die $!;
	print $out $text;
	close $out;
	return made() =~ /lua_script\[\] =\n(.*?);\n/s ? $1 : slurp("$tree/errors");
}

ok(made() eq slurp('src/protocol/lua_text.c'),
	'src/protocol/lua_text.c is what scripts/lua_text.pl makes of the scripts')
  or diag(slurp("$tree/errors") . 'make it again: scripts/lua_text.pl >src/protocol/lua_text.c');

is(made_of("-- first\n\tlocal a = 1 -- one\n\n  return a - -1\n"),
	qq{\t"local a = 1\\n"\n\t"return a - -1\\n"},
	'comments, indentation and empty lines go');
is(made_of(qq{return '-- \\\\\\' "' .. "it's \\0" -- "\n}),
	qq{\t"return '-- \\\\\\\\\\\\' \\"' .. \\"it's \\\\0\\"\\n"},
	'texts stay as they are');
is(made_of("return LUA_SPAN + XLUA_SPAN, tostring(LUA_SPAN), 'LUA_SPAN'\n"),
	qq{\t"return " TEXT(LUA_SPAN) " + XLUA_SPAN, '" TEXT(LUA_SPAN) "', 'LUA_SPAN'\\n"},
	'constants are put in by the C compiler');

# Pieces
my $pieces = <<'LUA';
function HEAD(text) return sub(text, 1, 2) end -- a slice
function SAME(a, b) return (HEAD(a) == b) end
function ANSWER(found, a)
	if SAME(found, ',)') then
		reply = found -- a
		break
	end
end
LUA
is(made_of($pieces . "repeat\n\tANSWER(call('x, (y', key .. \"a\"), 1)\nuntil SAME(key, HEAD(a)) or 'HEAD' == HEAD\n"),
	join("\n", map { qq{\t"$_\\n"} } 'repeat',
		q{if (sub(call('x, (y', key .. \\"a\\"), 1, 2) == ',)') then}, q{reply = call('x, (y', key .. \\"a\\")}, 'break', 'end',
		q{until (sub(key, 1, 2) == sub(a, 1, 2)) or 'HEAD' == HEAD}),
	'a piece stands in the place of each use, with its arguments');
foreach (
	[ 'return 1',                          'redlock.lua: nothing uses ANSWER' ],
	[ 'return HEAD(a, b)',                 'redlock.lua:9: another number of arguments' ],
	[ "\tANSWER(a)",                       'redlock.lua:9: another number of arguments' ],
	[ 'return HAED(a)',                    'redlock.lua:9: there is no piece HAED for an expression' ],
	[ 'return ANSWER(a, b)',               'redlock.lua:9: there is no piece ANSWER for an expression' ],
	[ "function HEAD(a) return a end",     'redlock.lua:9: HEAD is there already' ],
	[ "function TAIL(a)\n\tANSWER(a, 1)",  'redlock.lua: a piece without an end' ],)
{
	my ($use, $why) = @$_;
	like(made_of("$pieces$use\n"), qr/\Q$why\E/, "pieces: " . $use =~ s{\n\t}{ }r);
}

like(made_of("\nreturn $_\n"), qr/redlock\.lua:2: lua\.h has no such number or text: $_/, "no constant: $_")
  foreach qw(LUA_SPIN LUA_H);
like(made_of("return 1,\n\t$_\n"), qr/redlock\.lua:2: can't be made C of: /, "not: $_")
  foreach '[[long', '--[==[ long', q{'open}, q{"open\\};

done_testing();
