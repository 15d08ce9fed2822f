// The order of a graph's calls, made once when a file is loaded: each op with its arguments in place, when values die,
// and what an in-place op writes.
//
// Nothing is ever written in place. A call of aten.add_ computes aten.add, and the result becomes the value of the
// written name. Where views of it, or tensors that it is a view of, are still read later, the write goes through them:
// up to the tensor that owns the memory, by each view's write_through, and down to the views that are alive, by
// computing them again. The numbers and gradients are those of PyTorch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph.h"
#include "ops_table.h"

namespace gradual::pt2 {

struct Step {
  std::shared_ptr<const Op> op;
  std::vector<Value> arguments;  // in the order of the op's names; a Ref where a value comes in
  std::vector<int> incoming;     // the arguments that are or contain a Ref
  std::vector<Node::Output> outputs;
  int node = 0;          // in Graph::nodes
  bool grad = true;      // as Node's
  bool autocast = true;  // as Node's
  SourceLocation line;
  bool shares = true;        // whether a may_view's result shares the memory of its argument; where that is not
  bool shares_known = true;  // known from the file, it is seen in each call
  std::string where;         // "aten.add_.Tensor (mine.py:57: x += 1)"
  std::vector<int> release;  // values that no later step reads
  // In-place: the value that is written, or -1.
  int written = -1;
  // Then: the values from the written one to the owner of its memory, each a view of the next, and the values to
  // compute again after that, in order. Empty if nobody else sees the write.
  std::vector<int> owners, refreshed;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<int> made_by;    // the step that gives a value; -1 for inputs
  std::vector<int> place;      // which of the step's outputs it is
  std::vector<Value> outputs;  // as Graph::outputs, with the written names resolved
  // How many calls whose row has a mode were recorded in training and in evaluation.
  int training_calls = 0;
  int evaluation_calls = 0;
};

// Error that lists every unknown op, with its count and Python lines, or names a call that lacks an argument.
Plan make_plan(const Graph& graph);

// Whether a batch norm updates this value in place: a mean or a variance over batches.
bool is_running_statistic(const Plan& plan, int value);

}  // namespace gradual::pt2
