/* redlock_pg--0.1.0--0.2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION redlock_pg UPDATE TO '0.2.0'" to load this file. \quit

-- The SQL objects of 0.2.0 are those of 0.1.0.
