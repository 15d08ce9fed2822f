#include <gradual/data/gzip.h>

#include <cmath>

#include "misuse.h"

using namespace gradual;
using namespace gradual::data;

namespace test {
namespace {

Dataset pairs(std::int64_t n = 4) { return {.inputs = ones({n, 2}), .targets = zeros({n}, DType::i64)}; }
// Both batches of a loader.
Tensor first_of(DataLoader loader) {
  Batch b;
  loader.next(b);
  return b.inputs;
}
const std::string kIdx(
    "\0\0\x08\x01\0\0\0\x02"
    "ab",
    10);
std::string idx_with(std::size_t at, char byte) {
  std::string bytes = kIdx;
  bytes[at] = byte;
  return bytes;
}

}  // namespace

Misuses data_misuses() {
  return {
      {"a batch of 0", [] { DataLoader(pairs(), {.batch = 0}); },
       "DataLoader: batch 0 is not allowed; it must be at least 1"},
      {"a batch of -1", [] { DataLoader(pairs(), {.batch = -1}); },
       "DataLoader: batch -1 is not allowed; it must be at least 1"},
      {"a loader of -1 samples", [] { DataLoader(-1, [](const auto&) { return Batch(); }); }, "DataLoader: -1 samples"},
      {"a loader without function", [] { DataLoader(4, nullptr); },
       "DataLoader: the function that makes a batch is null"},
      {"a loader of an empty dataset", [] { DataLoader{Dataset()}; },
       "dataset: it has no inputs or targets; it was not filled"},
      {"a loader of no samples", [] { return static_cast<double>(DataLoader(pairs(0)).size()); }, "= 0"},
      {"a dataset without targets",
       [] {
         DataLoader(Dataset{.inputs = ones({2, 2})});
       },
       "dataset: it has no inputs or targets; it was not filled"},
      {"a dataset of other counts",
       [] {
         DataLoader(Dataset{.inputs = ones({2, 2}), .targets = zeros({3}, DType::i64)});
       },
       "dataset: inputs [2, 2] and targets [3] need the same first size"},
      {"a dataset without dims", [] { DataLoader(Dataset{.inputs = ones({}), .targets = ones({})}); },
       "dataset: inputs [] and targets [] need the same first size"},
      {"a function that throws",
       [] { return first_of(DataLoader(4, [](const auto&) -> Batch { throw_error("no such sample"); })); },
       "no such sample"},
      {"a function that returns nothing", [] { return first_of(DataLoader(4, [](const auto&) { return Batch(); })); },
       "= undefined"},
      {"a batch for a GPU that is not there", [] { return first_of(DataLoader(pairs(), {.device = Device::cuda(9)})); },
       "no device cuda:9"},
      {"an epoch of -1", [] { DataLoader(pairs()).start_epoch(-1); }, "DataLoader: epoch -1; they count from 0"},
      {"the state of another loader", [] { DataLoader(pairs()).load_state_dict(DataLoader(pairs(5)).state_dict()); },
       "DataLoader: the state has samples 5, this loader 4"},
      {"a loader's state beyond the epoch",
       [] {
         DataLoader loader(pairs());
         StateDict state = loader.state_dict();
         state.set("position", 7);
         loader.load_state_dict(state);
       },
       "DataLoader: the state is at batch 7 of epoch 0; an epoch has 1 batches"},
      {"a loader's empty state", [] { DataLoader(pairs()).load_state_dict(StateDict()); },
       "state_dict: no entry \"samples\"; the state dict is empty"},
      {"a sample that is not there", [] { return take(pairs(), {4}).inputs; }, "take: sample 4 of 4"},
      {"a sample of -1", [] { return take(pairs(), {-1}).inputs; }, "take: sample -1 of 4"},
      {"more samples to train than there are", [] { split(pairs(), 5); },
       "split: 5 samples to train; allowed are 0 to all 4"},
      {"-1 samples to train", [] { split(pairs(), -1); }, "split: -1 samples to train; allowed are 0 to all 4"},
      {"a table of words", [] { return parse_csv("1,two\n", "t.csv"); },
       "csv \"t.csv\", line 1, column 2: \"two\" is not a number"},
      {"a table of ragged lines", [] { return parse_csv("1,2\n3\n", "t.csv"); },
       "csv \"t.csv\", line 2, column 1: the last of this line; each line has 2 columns"},
      {"a table of other columns", [] { return parse_csv("1,2\n", "t.csv", 3); },
       "csv \"t.csv\", line 1, column 2: the last of this line; each line has 3 columns"},
      {"a table of -1 columns", [] { return parse_csv("1,2\n", "t.csv", -1); },
       "csv \"t.csv\": -1 columns; allowed are 0 and more"},
      {"an empty table", [] { return parse_csv("", "t.csv"); }, "csv \"t.csv\": it is empty"},
      {"a table with an empty field", [] { return parse_csv("1,,2\n", "t.csv"); },
       "csv \"t.csv\", line 1, column 2: empty, a number is needed"},
      {"a table of 1e999", [] { return parse_csv("1e999\n", "t.csv"); },
       "csv \"t.csv\", line 1, column 1: \"1e999\" is out of f64's range"},
      {"a table with NaN", [] { return parse_csv("nan\n", "t.csv"); }, "= f64: nan"},
      {"a table that is not there", [] { return read_csv("/no/t.csv"); },
       "cannot read \"/no/t.csv\": No such file or directory"},
      {"a table that is a folder", [] { return read_csv("/"); }, "cannot read \"/\": it is a folder"},
      {"an IDX file of nothing", [] { return parse_idx("", "i"); }, "idx \"i\": truncated: 0 bytes"},
      {"an IDX file with another start", [] { return parse_idx(idx_with(0, 'P'), "i"); },
       "idx \"i\": does not start with two zero bytes; it is not an IDX file"},
      {"an IDX file of an unknown type", [] { return parse_idx(idx_with(2, 0x0a), "i"); },
       "idx \"i\": element type 10; allowed are 8 (u8), 9 (i8), 11 (i16), 12 (i32), 13 (f32) and 14 (f64)"},
      {"an IDX file of nine dims", [] { return parse_idx(idx_with(3, 9), "i"); },
       "idx \"i\": 9 dimensions; 1 to 8 are allowed"},
      {"an IDX file that is too short", [] { return parse_idx(idx_with(7, 3), "i"); },
       "idx \"i\": u8 [3] does not take the 2 bytes that are there"},
      {"an IDX file that is too long", [] { return parse_idx(kIdx + "c", "i"); },
       "idx \"i\": u8 [2] does not take the 3 bytes that are there"},
      {"an IDX file of huge sizes", [] { return parse_idx(idx_with(4, 0x7f), "i"); },
       "idx \"i\": u8 [2130706434] does not take the 2 bytes that are there"},
      {"a gzip file that ends early", [] { return gunzip_if_packed("\x1f\x8b\x08", "g"); }, "gzip \"g\": truncated"},
      {"a gzip file of garbage", [] { return gunzip_if_packed("\x1f\x8bgarbage!", "g"); },
       "gzip \"g\": damaged: unknown compression method"},
      {"a folder without MNIST", [] { mnist("/no"); },
       "mnist: neither \"/no/train-images-idx3-ubyte\" nor \"/no/train-images-idx3-ubyte.gz\" is there"},
      {"a text that is not there", [] { read_text("/no/text"); },
       "cannot read \"/no/text\": No such file or directory"},
      {"an empty text", [] { make_text_dataset(""); },
       "text: 0 characters, 0 to train and 0 to test; both must be more than the 64 of a window"},
      {"a text shorter than a window", [] { make_text_dataset("short"); },
       "text: 5 characters, 4 to train and 1 to test; both must be more than the 64 of a window"},
      {"windows of no character", [] { make_text_dataset("a text of letters", {.context = 0}); },
       "windows: context 0 and stride 0 must be at least 1"},
      {"windows by -1", [] { make_text_dataset("a text of letters", {.context = 1, .stride = -1}); },
       "windows: context 1 and stride -1 must be at least 1"},
      {"a test share of 0", [] { make_text_dataset("a text of letters", {.context = 1, .test_fraction = 0}); },
       "text: test_fraction 0 must lie between 0 and 1"},
      {"a test share of 1", [] { make_text_dataset("a text of letters", {.context = 1, .test_fraction = 1}); },
       "text: test_fraction 1 must lie between 0 and 1"},
      {"a test share of NaN", [] { make_text_dataset("a text of letters", {.context = 1, .test_fraction = NAN}); },
       "text: test_fraction nan must lie between 0 and 1"},
      {"windows of a matrix",
       [] {
         windows(zeros({2, 2}, DType::i64), 1, 1);
       },
       "windows: tokens [2, 2] must be one row of more than 1"},
      {"windows longer than the text", [] { windows(arange(0, 3), 3, 1); },
       "windows: tokens [3] must be one row of more than 3"},
      {"a vocabulary of nothing", [] { Vocabulary(""); }, "vocabulary: the text is empty"},
      {"a character outside of the vocabulary", [] { return Vocabulary("abc").encode("abd"); },
       "vocabulary: character 2 of the text has code 100, which is not among the 3 of the vocabulary"},
      {"a token outside of the vocabulary", [] { return Vocabulary("abc").decode(full({1}, 3, DType::i64)); },
       "vocabulary: token 3 is outside of [0, 3)"},
      {"tokens of floats", [] { return Vocabulary("abc").decode(ones({1})); }, "vocabulary: tokens are i64, not f32"},
      {"addition of no digit", [] { addition(0); }, "addition: 0 digits; 1 to 3 are allowed"},
      {"addition of four digits", [] { addition(4); }, "addition: 4 digits; 1 to 3 are allowed"},
      {"a prompt of too large a number", [] { return addition(1).prompt(10, 0); },
       "addition: 10 + 0: both must lie in [0, 10)"},
      {"a prompt of -1", [] { return addition(1).prompt(-1, 0); }, "addition: -1 + 0: both must lie in [0, 10)"},
      {"the answer to too large a number", [] { return addition(1).answer(10, 95); },
       "addition: 10 + 95: both must lie in [0, 10)"},
      {"the answer to -1", [] { return addition(1).answer(-1, 0); }, "addition: -1 + 0: both must lie in [0, 10)"},
  };
}

}  // namespace test
