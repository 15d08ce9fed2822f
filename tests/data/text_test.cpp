#include <doctest/doctest.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/data/text.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/files.h"

using namespace gradual;
using namespace gradual::data;
using test::message_of;

TEST_CASE("a vocabulary numbers the characters of a text") {
  const Vocabulary v("hello world");
  CHECK(v.size() == 8);
  CHECK(v.characters() == " dehlorw");
  CHECK(v.encode("hello").to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 2, 4, 4, 5});
  CHECK(v.decode(v.encode("world")) == "world");
  const std::string bytes = "\xc3\xa9\xff z";
  CHECK(Vocabulary(bytes).decode(Vocabulary(bytes).encode(bytes)) == bytes);
  CHECK(message_of([&] { v.encode("he!"); }) ==
        "vocabulary: character 2 of the text has code 33, which is not among the 8 of the vocabulary");
  CHECK(message_of([&] { v.decode(from_data(std::vector<std::int64_t>{8}, {1})); }) ==
        "vocabulary: token 8 is outside of [0, 8)");
  CHECK(message_of([] { Vocabulary(""); }) == "vocabulary: the text is empty");
}

TEST_CASE("windows are views of one text, targets one character further on") {
  const Tensor tokens = arange(0, 10);
  const Dataset d = windows(tokens, 4, 1);
  CHECK(d.inputs.sizes() == Shape{6, 4});
  CHECK(d.inputs.shares_storage(tokens));
  const Batch last = take(d, {5});
  CHECK(last.inputs.to_vector<std::int64_t>() == std::vector<std::int64_t>{5, 6, 7, 8});
  CHECK(last.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{6, 7, 8, 9});
  CHECK(windows(tokens, 4, 4).size() == 2);
  CHECK(windows(tokens, 9, 4).size() == 1);
  CHECK(message_of([&] { windows(tokens, 10, 1); }) == "windows: tokens [10] must be one row of more than 10");
  CHECK(test::contains(message_of([&] { windows(tokens, 0, 1); }), "must be at least 1"));
}

TEST_CASE("a text's end is for testing") {
  const std::string text = std::string(90, 'a') + std::string(10, 'b');
  const TextDataset d = make_text_dataset(text, {.context = 4});
  CHECK(d.vocabulary.size() == 2);
  CHECK(d.train.classes == 2);
  CHECK(d.train.size() == 22);
  CHECK(d.test.size() == 2);
  for (const std::int64_t token : d.test.inputs.to_vector<std::int64_t>()) CHECK(token == 1);
  CHECK(message_of([&] { make_text_dataset(text, {.context = 20}); }) ==
        "text: 100 characters, 90 to train and 10 to test; both must be more than the 20 of a window");
  CHECK(test::contains(message_of([&] { make_text_dataset(text, {.test_fraction = 1}); }), "between 0 and 1"));
}

TEST_CASE("the error of a text that is too short names its file") {
  const test::TemporaryFolder folder;
  const auto refused = [&](const std::string& text) {
    write_file_atomically(folder / "short.txt", text);
    return message_of([&] { read_text(folder / "short.txt", {.context = 4}); });
  };
  CHECK(refused("") ==
        folder / "short.txt" + ": 0 characters, 0 to train and 0 to test; both must be more than the 4 of a window");
  CHECK(refused(std::string(40, 'a')).starts_with(folder / "short.txt: 40 characters, 36 to train and 4 to test"));
  CHECK(refused(std::string(50, 'a')) == "nothing was thrown");
}

TEST_CASE("a real text") {
  const std::string path = test::shared_data("tinyshakespeare.txt");
  if (path.empty()) {
    MESSAGE("skipped: ../shared/data/tinyshakespeare.txt is not there");
    return;
  }
  const TextDataset d = read_text(path, {.context = 128, .stride = 1});
  CHECK(d.vocabulary.size() == 65);
  CHECK(d.vocabulary.decode(take(d.train, {0}).inputs).starts_with("First Citizen:\nBefore we proceed any further"));
}

TEST_CASE("addition: problems, answers and what counts") {
  const Addition a = addition(2);
  CHECK(a.problems.size() == 10000);
  CHECK(a.problems.inputs.sizes() == Shape{10000, 8});
  CHECK(a.problems.classes == 12);
  CHECK(a.prompt(7, 5) == "07+05=");
  CHECK(a.answer(7, 5) == "210");
  CHECK(a.answer(99, 99) == "891");
  const Batch b = take(a.problems, {12 * 100 + 34});
  CHECK(a.vocabulary.decode(b.inputs) == "12+34=64");
  const std::vector<std::int64_t> y = b.targets.to_vector<std::int64_t>();
  CHECK(std::vector<std::int64_t>(y.begin(), y.begin() + 5) == std::vector<std::int64_t>(5, -100));
  CHECK(a.vocabulary.decode(from_data(std::vector<std::int64_t>(y.begin() + 5, y.end()), {3})) == "640");
  CHECK(addition(1).problems.inputs.sizes() == Shape{100, 5});
  CHECK(test::contains(message_of([] { addition(4); }), "1 to 3 are allowed"));
  CHECK(test::contains(message_of([&] { a.prompt(100, 0); }), "both must lie in [0, 100)"));
}
