/* What a test saw happen, a letter each. */
#ifndef STORY_H
#define STORY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static char story[256];

static void tell(char letter)
{
    size_t length = strlen(story);
    assert_true(length + 1 < sizeof story);
    story[length] = letter;
    story[length + 1] = '\0';
}

static void expect_story(const char *wanted)
{
    assert_string_equal(story, wanted);
    story[0] = '\0';
}

#endif
